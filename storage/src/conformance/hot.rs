//! What every [`HotStore`] must do while what is behind it works. That it may lose anything is tried where it can be broken.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::ids::TaskId;
use tokio::{sync::broadcast, time::timeout};

use super::{LONG, Outcome, session};
use crate::{
    HotStore, OwnerHint, Wake,
    hot::{TASK_WORD_BYTES_MAX, WAKES_HELD_MAX},
};

/// Two replicas that hear each other.
pub type Replicas = [Arc<dyn HotStore>; 2];

/// How long a word may take between two replicas.
const DEADLINE: Duration = Duration::from_secs(10);

pub async fn finds_who_owns_a_session(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    assert_eq!(one.owner(&session(1)).await, None);
    one.note_owner(&session(1), &hint("a"), LONG).await;
    one.note_owner(&session(2), &hint("b"), LONG).await;
    assert_eq!((two.owner(&session(1)).await, two.owner(&session(2)).await), (Some(hint("a")), Some(hint("b"))));
    two.note_owner(&session(1), &hint("c"), LONG).await;
    assert_eq!((one.owner(&session(1)).await, two.owner(&session(1)).await), (Some(hint("c")), Some(hint("c"))));
    two.forget_owner(&session(1)).await;
    two.forget_owner(&session(9)).await;
    assert_eq!((one.owner(&session(1)).await, one.owner(&session(2)).await), (None, Some(hint("b"))));
    Ok(())
}

pub async fn a_hint_ends_with_its_time(replicas: &Replicas) -> Outcome {
    let [one, _] = replicas;
    one.note_owner(&session(1), &hint("a"), LONG).await;
    one.note_owner(&session(1), &hint("b"), Duration::ZERO).await;
    assert_eq!(one.owner(&session(1)).await, None);
    Ok(())
}

pub async fn a_word_reaches_every_listener_once_and_in_order(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    assert!(one.is_connected() && two.is_connected());
    let mut listeners = [one.wakes(), one.wakes(), two.wakes(), two.wakes()];
    let words = [
        Wake::Config,
        Wake::Task { task: TaskId::new("task-ü/1"), session: session(1) },
        Wake::TaskWord { session: session(2), frame: Bytes::from_static(b"{\"jsonrpc\":\"2.0\"}\0\xff") },
        Wake::TaskWord { session: session(2), frame: Bytes::from(vec![b'x'; TASK_WORD_BYTES_MAX]) },
        Wake::SessionEnd(session(3)),
    ];
    for word in &words {
        one.wake(word.clone());
    }
    for listener in &mut listeners {
        for word in &words {
            assert_eq!(heard(listener).await, *word);
        }
    }
    two.wake(Wake::SessionEnd(session(4)));
    for listener in &mut listeners {
        assert_eq!(heard(listener).await, Wake::SessionEnd(session(4)), "nothing was told twice");
    }
    Ok(())
}

pub async fn a_word_reaches_nobody_who_listens_later(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    one.wake(Wake::Config);
    let mut late = one.wakes();
    two.wake(Wake::SessionEnd(session(1)));
    assert_eq!(heard(&mut late).await, Wake::SessionEnd(session(1)));
    Ok(())
}

pub async fn a_longer_notification_is_not_passed_on(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    let mut listeners = [one.wakes(), two.wakes()];
    one.wake(Wake::TaskWord { session: session(1), frame: Bytes::from(vec![b'x'; TASK_WORD_BYTES_MAX + 1]) });
    one.wake(Wake::Config);
    for listener in &mut listeners {
        assert_eq!(heard(listener).await, Wake::Config);
    }
    Ok(())
}

pub async fn many_words_at_once_arrive(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    let mut listener = two.wakes();
    let count = WAKES_HELD_MAX / 2;
    let word = |number: usize| Wake::Task { task: TaskId::new(number.to_string()), session: session(1) };
    for number in 0..count {
        one.wake(word(number));
    }
    for number in 0..count {
        assert_eq!(heard(&mut listener).await, word(number));
    }
    Ok(())
}

pub async fn nothing_fails_after_close(replicas: &Replicas) -> Outcome {
    let [one, _] = replicas;
    one.note_owner(&session(1), &hint("a"), LONG).await;
    one.close().await;
    one.close().await;
    assert!(!one.is_connected());
    one.note_owner(&session(2), &hint("b"), LONG).await;
    one.forget_owner(&session(1)).await;
    one.wake(Wake::Config);
    assert_eq!((one.owner(&session(1)).await, one.owner(&session(2)).await), (None, None));
    Ok(())
}

fn hint(node: &str) -> OwnerHint {
    OwnerHint { node: format!("{node}/1f2e3d4c"), address: format!("{node}.example:7400") }
}

async fn heard(listener: &mut broadcast::Receiver<Wake>) -> Wake {
    timeout(DEADLINE, listener.recv()).await.expect("a word in time").expect("no word was missed")
}
