//! Tests of batches.

use protocol::handshake;

use super::*;

fn read(arguments: &str) -> Result<Batch, String> {
    Batch::read(Some(arguments.as_bytes()), 2).map_err(|refusal| {
        assert_eq!(refusal.kind, ErrorKind::InvalidParams);
        refusal.to_string()
    })
}

#[test]
fn a_batch_is_read_as_a_whole_before_a_call_starts() {
    let batch = read(r#"{"calls":[{"tool":"a","arguments":{"n":1.50}},{"tool":"b"}]}"#).unwrap();
    let [a, b] = &batch.calls[..] else { panic!("{batch:?}") };
    assert_eq!(a.arguments.as_deref(), Some(br#"{"n":1.50}"#.as_slice()), "as it was written");
    assert_eq!((b.tool.as_str(), &b.arguments), ("b", &None));
    assert!(batch.stops_on_error && !batch.is_parallel);
    for (arguments, problem) in [
        ("{}", "needs the array calls"),
        ("[]", "must be an object"),
        (r#"{"calls":[]}"#, "must have 1 to 2 calls"),
        (r#"{"calls":[{"tool":"a"},{"tool":"a"},{"tool":"a"}]}"#, "must have 1 to 2 calls"),
        (r#"{"calls":[{"tool":"a"}],"atomic":true}"#, "other than calls, parallel, stop_on_error"),
        (r#"{"calls":[{"tool":"a"}],"parallel":1}"#, "parallel that is not a boolean"),
        (r#"{"calls":[{"tool":"a"}],"calls":[]}"#, "member twice"),
        (r#"{"calls":[{"tool":"a"},{"tool":1}]}"#, "needs the text calls[1].tool"),
        (r#"{"calls":[{"tool":"a","args":{}}]}"#, "other than tool, arguments"),
        (r#"{"calls":[{"tool":"a","arguments":[]}]}"#, "calls[0].arguments that are not an object"),
        (r#"{"calls":["a"]}"#, "has calls[0] that must be an object"),
        (r#"{"calls":[{"tool":"execute_batch"}]}"#, "a batch must not contain a batch"),
    ] {
        let text = read(arguments).unwrap_err();
        assert!(text.contains(problem), "{arguments}: {text}");
    }
}

#[test]
fn a_call_of_a_batch_is_a_request_of_the_client() {
    let call = BatchCall { tool: "a\"b".to_owned(), arguments: Some("{\"n\":1.50}".into()) };
    let id = RequestId::from_raw("\"x\"".into());
    let message = call.request(&id, Some(b"\"00-1\"")).unwrap();
    assert_eq!(message.text(message.fields.meta_traceparent).as_deref(), Some("00-1"));
    assert_eq!(message.text(message.fields.name).as_deref(), Some("a\"b"));
    assert_eq!(message.bytes(message.fields.arguments), Some(br#"{"n":1.50}"#.as_slice()));
}

#[test]
fn the_calls_of_a_batch_do_not_repeat_a_long_traceparent() {
    let call = BatchCall { tool: "a".to_owned(), arguments: None };
    let id = RequestId::from_raw("1".into());
    let has_trace = |chars: usize| {
        let trace = format!("\"{}\"", "0".repeat(chars));
        let message = call.request(&id, Some(trace.as_bytes())).unwrap();
        message.fields.meta_traceparent.is_some()
    };
    assert!(has_trace(55));
    assert!(!has_trace(10_000));
}

fn answered(frame: &str) -> BatchEnd {
    let frame = Bytes::from(frame.to_owned());
    let limits = json::Limits::with_bytes_max(frame.len());
    BatchEnd::Answered(Box::new(Message::decode(frame, &limits).unwrap()))
}

fn shown(stops: bool, ends: &[BatchEnd]) -> Value {
    serde_json::from_str(&shown_text(stops, ends)).unwrap()
}

fn shown_text(stops: bool, ends: &[BatchEnd]) -> String {
    let call = BatchCall { tool: "t".to_owned(), arguments: None };
    let calls = vec![call; ends.len()];
    let batch = Batch { calls, is_parallel: false, stops_on_error: stops };
    String::from_utf8(result(&batch, ends).to_vec()).unwrap()
}

#[test]
fn each_call_has_its_own_outcome_in_the_result() {
    let done = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"yes"}]}}"#;
    let tool_error = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}"#;
    let error =
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no","data":{"kind":"x"}}}"#;
    let ends = || [answered(done), answered(tool_error), answered(error), BatchEnd::NotRun];
    let result = shown(true, &ends());
    let results = result["structuredContent"]["results"].as_array().unwrap();
    let statuses: Vec<&str> = results.iter().map(|one| one["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["ok", "tool_error", "error", "not_run"]);
    assert_eq!(results[0]["result"]["content"][0]["text"], "yes");
    assert_eq!(results[2]["error"]["data"]["kind"], "x");
    let texts: Vec<&str> = result["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["text"].as_str().unwrap())
        .collect();
    assert_eq!(
        texts,
        [
            "calls[0] t: ok",
            "yes",
            "calls[1] t: tool_error",
            "calls[2] t: error: no",
            "calls[3] t: not_run"
        ]
    );
    assert_eq!(result["isError"], true, "it stopped");
    assert_eq!(shown(false, &ends()).get("isError"), None, "one of them is done");
    assert_eq!(shown(false, &[answered(error)])["isError"], true, "none of them is done");
    assert_eq!(shown(true, &[answered(done)]).get("isError"), None);
}

#[test]
fn results_keep_the_text_of_their_backend() {
    let block = r#"{"type":"text","text":"n","_meta":{"n":123456789012345678901,"p":1.50}}"#;
    let done = format!(r#"{{"content":[{block}], "structuredContent":{{"n":1E2,"p":-0.0}}}}"#);
    let error = r#"{"code":-32602,"message":"n\u006f","data":{"n":123456789012345678901}}"#;
    let ends = [
        answered(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{done}}}"#)),
        answered(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)),
    ];
    let text = shown_text(false, &ends);
    for (part, count) in [(block, 2), (done.as_str(), 1), (error, 1), ("calls[1] t: error: no", 1)]
    {
        assert_eq!(text.matches(part).count(), count, "{part} in {text}");
    }
}

#[test]
fn results_beyond_the_size_limit_are_replaced_by_an_error() {
    let text = "x".repeat(BATCH_RESULT_BYTES_MAX * 2 / 3);
    let frame = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
    );
    let result = shown(true, &[answered(&frame), answered(&frame)]);
    let results = &result["structuredContent"]["results"];
    assert!(results[0]["result"].is_object());
    assert_eq!(
        (&results[1]["status"], &results[1]["error"]["data"]["kind"]),
        (&json!("ok"), &json!("message_too_large"))
    );
    assert_eq!(result.get("isError"), None, "both were carried out");
}

#[test]
fn a_call_whose_answer_cannot_be_read_has_begun() {
    let unreadable = || BatchEnd::of_answer(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"#));
    let readable = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#);
    assert!(matches!(unreadable(), BatchEnd::Unreadable) && unreadable().is_failure());
    assert!(!BatchEnd::of_answer(readable.clone()).is_failure());
    let result = shown(false, &[unreadable(), BatchEnd::of_answer(readable)]);
    let results = &result["structuredContent"]["results"];
    assert_eq!(
        (&results[0]["status"], &results[0]["error"]["data"]["kind"]),
        (&json!("error"), &json!("outcome_unknown"))
    );
    assert_eq!((&results[1]["status"], result.get("isError")), (&json!("ok"), None));
}

/// Returns the answer of a batch of one call as its readers decode it.
fn decoded_answer(end: BatchEnd) -> Message {
    let result = shown_text(false, &[end]);
    let frame = handshake::success(&RequestId::from_u64(1), result.as_bytes());
    let limits = json::Limits::with_bytes_max(frame.len());
    Message::decode(frame, &limits).unwrap()
}

#[test]
fn a_result_that_is_too_deep_for_the_batch_is_replaced_by_an_error() {
    // The frame, the result and this number of arrays.
    let nested = |arrays: usize| {
        let value = format!("{}{}", "[".repeat(arrays), "]".repeat(arrays));
        answered(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[],"structuredContent":{value}}}}}"#
        ))
    };
    let most = json::DEPTH_MAX - LEVELS_AROUND_RESULT - 1;
    for (arrays, is_whole) in [(most, true), (most + 1, false), (json::DEPTH_MAX - 2, false)] {
        let answer = decoded_answer(nested(arrays));
        let text = String::from_utf8_lossy(&answer.frame);
        assert_eq!(text.contains(&"[".repeat(arrays)), is_whole, "{arrays}");
        assert_eq!(text.contains("the call was carried out"), !is_whole, "{arrays}");
    }
}

#[test]
fn results_with_too_many_values_are_replaced_by_an_error() {
    let listed = |count: usize| {
        let values = vec!["0"; count].join(",");
        answered(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{values}]}}}}"#))
    };
    // The result and its content are values too.
    let most = BATCH_RESULT_VALUES_MAX - 2;
    for (count, is_whole) in [(most, true), (most + 1, false)] {
        let answer = decoded_answer(listed(count));
        let is_lost = memchr::memmem::find(&answer.frame, b"the call was carried out").is_some();
        assert_eq!(is_lost, !is_whole, "{count}");
    }
}
