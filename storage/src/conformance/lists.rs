//! The lists of behaviours, as macros. Every implementation must pass each behaviour in them.

/// Defines a module of tests with the behaviours of a [`ConfigStore`](crate::ConfigStore). Each
/// test has its own store.
#[macro_export]
macro_rules! store_conformance {
    (@list $suite:ident, $pair:tt) => {
        $crate::conformance_tests! { $suite, $pair,
            config {
                starts_empty
                lists_tenants_by_name
                replaces_a_tenant_and_keeps_its_birthday
                adds_a_tenant_only_where_there_is_none
                keeps_settings_byte_for_byte
                tells_whether_a_tenant_was_there
                takes_keys_and_backends_along_with_their_tenant
                lists_keys_of_one_tenant_only
                refuses_a_key_id_twice
                removes_a_key_only_for_its_tenant
                refuses_what_has_no_tenant
                lists_backends_by_tenant_and_name
                replaces_a_backend_and_keeps_its_birthday
                keeps_one_backend_name_apart_in_two_tenants
                takes_writes_at_the_same_time
                tells_of_every_change_by_a_version
                keeps_its_version_while_nothing_changes
                replaces_a_policy_and_keeps_its_birthday
                removes_a_policy_once_and_with_its_tenant
                refuses_a_policy_of_an_unknown_tenant
                counts_changes_of_policies
                holds_breakers_until_they_are_released_or_their_backend_goes
                refuses_after_close
            }
            catalog_documents {
                documents_are_kept_replaced_and_listed_in_order
                a_document_is_removed_once_and_with_its_tenant
                refuses_a_document_of_an_unknown_tenant
                counts_changes_of_documents
            }
            credentials {
                operators_are_kept_as_given_and_listed_by_name
                an_operators_name_and_id_are_taken_once
                revocations_are_kept_and_replaced
                issuers_of_tenants_are_kept_and_replaced
                credentials_end_with_their_tenant
                refuses_credentials_of_an_unknown_tenant
                counts_changes_of_credentials
            }
        }
    };
    ($suite:ident, on $server:expr => $open:path) => {
        $crate::store_conformance! { @list $suite, { on $server => $open } }
    };
    ($suite:ident, $pair:expr) => {
        $crate::store_conformance! { @list $suite, { $pair } }
    };
}

/// Defines a module of tests with the behaviours of a [`DurableStore`](crate::DurableStore). Each
/// test has its own store.
#[macro_export]
macro_rules! durable_conformance {
    (@list $suite:ident, $pair:tt) => {
        $crate::conformance_tests! { $suite, $pair,
            audit {
                records_are_kept_as_given_and_in_order
                a_record_sent_again_is_added_once
                records_are_filtered_and_paged
                records_outlive_their_tenant
                a_change_and_what_is_told_of_it_are_one
            }
            results {
                a_result_is_kept_as_given_for_its_principal_only
                a_result_expires_and_is_removed
                the_oldest_results_of_a_principal_make_room
                a_tenant_without_room_stores_no_result
                results_end_with_their_backend_and_tenant
            }
            approvals {
                an_approval_is_kept_as_given
                an_equal_call_joins_and_another_one_does_not
                one_of_many_decisions_counts
                a_decision_and_what_is_told_of_it_are_one
                an_approval_is_used_once_and_by_the_same_call_again
                an_approval_whose_tool_changed_is_not_used
                pending_approvals_are_counted_by_tenant
                a_denied_approval_is_not_used_and_the_next_call_asks_again
                an_approval_expires_pending_and_approved
                a_window_lets_other_arguments_pass_for_its_time
                a_window_of_no_time_is_closed
                limits_of_pending_approvals_are_exact
                approvals_are_listed_by_state_in_pages
                final_approvals_are_removed_by_age
                approvals_end_with_their_backend_and_their_tenant
            }
            audit_chain {
                s15_records_form_a_chain_for_each_tenant
                s15_writers_at_the_same_time_extend_one_chain
                s15_only_the_beginning_of_a_chain_is_removed
                s15_checkpoints_only_move_forward
                s15_chains_are_listed_by_name
                s15_terms_change_one_version_at_a_time
            }
            grants {
                a_grant_is_kept_as_given_for_its_principal_only
                a_grant_is_written_over_the_expected_version_only
                the_error_of_a_grant_stays_until_its_next_write
                one_of_many_gets_the_lease_of_a_grant
                the_first_connected_grant_is_found_and_grants_are_counted
                weak_grants_are_counted_by_tenant
                grants_end_with_their_backend_and_their_tenant
                a_secret_is_taken_once_and_expires
                the_first_added_secret_stays_until_it_expires
            }
            seals {
                the_first_root_key_of_a_secret_stays
                root_keys_of_other_secrets_are_removed_for_one_that_has_a_root_key
                values_of_earlier_keys_are_found_and_sealed_again
                a_value_that_changed_is_not_sealed_again
            }
            pins {
                the_first_sighting_of_any_replica_stays
                a_sighting_changes_no_decision
                an_approval_names_the_hash_that_was_seen_last
                an_approval_is_carried_out_as_a_whole
                approved_hashes_are_kept_up_to_a_number
                a_block_lasts_until_an_approval
                what_is_gone_is_marked_and_forgotten_when_asked
                a_backend_has_a_limited_number_of_pins
                pins_end_with_their_backend_and_their_tenant
                decisions_are_counted_and_change_the_version
            }
            nodes {
                a_lease_runs_from_joining
                nodes_are_listed_by_name
                joining_may_be_repeated
                a_renewal_extends_the_lease
                a_lapsed_lease_is_not_renewed
                an_unknown_node_holds_nothing
                leaving_lets_go_at_once
                a_renewal_tells_the_version_of_the_configuration
                a_renewal_names_the_sessions_to_end
            }
            sessions {
                an_opened_session_is_kept_as_given
                opening_may_be_repeated_by_its_owner_only
                many_sessions_open_in_one_batch
                an_update_replaces_what_is_given
                an_update_tells_when_its_client_was_heard_of
                writes_without_the_right_epoch_change_nothing
                a_fenced_write_does_not_spoil_its_batch
                an_ended_session_is_gone
                a_live_owner_keeps_its_session
                a_session_of_a_gone_owner_can_be_taken
                an_owner_of_an_unclaimed_session_may_go_on
                an_owner_may_claim_again
                a_released_session_is_anybodys
                a_claim_needs_the_same_seat
                one_of_many_claims_wins
                a_claim_counts_as_hearing_of_its_client
                what_a_node_left_behind_can_be_reclaimed
                a_live_owner_is_asked_to_end_a_session
                without_a_live_owner_a_session_ends_when_asked
                a_sweep_takes_what_nobody_owns_and_nobody_uses
                subscriptions_are_counted_by_resource
                a_subscription_ends_when_told
                sessions_are_listed_in_pages
                sessions_are_found_by_digest
                sessions_end_with_their_tenant
            }
            tasks {
                a_new_task_is_kept_as_given
                steps_are_kept
                an_ended_task_has_its_outcome
                an_ended_task_never_changes
                anybody_may_cancel
                one_of_two_ends_counts
                writes_without_the_right_epoch_change_nothing
                tasks_of_gone_owners_are_claimed
                two_never_claim_the_same_task
                a_node_does_not_claim_its_own_tasks
                a_released_task_is_anybodys
                what_a_node_can_not_carry_out_is_left_to_others
                what_a_node_left_behind_can_be_reclaimed
                a_task_has_the_time_left_that_the_store_says
                an_audience_sees_its_own_tasks_only
                operators_see_tasks_by_tenant_and_status
                a_page_begins_after_a_place_that_is_gone
            }
            task_limits {
                creating_may_be_repeated_by_its_owner_only
                a_repeated_request_finds_its_task
                the_same_request_twice_in_a_batch_is_one_task
                one_of_many_repeated_requests_makes_the_task
                limits_hold_within_a_batch
                limits_hold_among_many
                a_finished_task_makes_room_for_a_running_one
                requests_details_and_outcomes_count_as_bytes
                what_expired_makes_room
                expiry_keeps_to_its_limit
                tasks_end_with_their_tenant
            }
            task_inputs {
                a_question_makes_the_task_wait
                a_question_asked_again_is_one
                the_first_answer_counts
                one_of_many_answers_counts
                the_last_answer_lets_the_task_go_on
                a_question_outlives_its_owner
                an_ended_task_asks_nothing
                a_look_tells_what_changed
            }
        }
    };
    ($suite:ident, on $server:expr => $open:path) => {
        $crate::durable_conformance! { @list $suite, { on $server => $open } }
    };
    ($suite:ident, $pair:expr) => {
        $crate::durable_conformance! { @list $suite, { $pair } }
    };
}

/// Defines a module of tests with the behaviours of an [`EventStore`](crate::EventStore). Each test
/// has its own store. A store whose events expire by themselves leaves out the behaviours about
/// expiry.
#[macro_export]
macro_rules! event_conformance {
    (@list $suite:ident, $pair:tt, $($more:ident)*) => {
        $crate::conformance_tests! { $suite, $pair,
            events {
                $($more)*
                finds_nothing_where_nothing_was_told
                finds_a_stream_as_it_was_told
                lists_streams_by_number_over_all_owners
                returns_events_after_a_position
                tells_a_position_ahead_of_the_log
                keeps_frames_byte_for_byte
                keeps_events_of_a_stream_told_again
                keeps_one_of_what_is_told_twice
                lets_go_of_what_is_trimmed
                goes_by_the_order_of_entries
                lets_go_of_a_dropped_stream
                keeps_no_event_of_an_unknown_stream
                keeps_sessions_apart
                forgets_a_session
                keeps_what_is_young
                takes_many_entries_at_once
                takes_appends_at_the_same_time
            }
        }
    };
    ($suite:ident, on $server:expr => $open:path) => {
        $crate::event_conformance! { @list $suite, { on $server => $open },
            lets_go_of_what_is_old_in_small_steps
        }
    };
    ($suite:ident, in turn on $server:expr => $open:path, expires_by_itself) => {
        $crate::event_conformance! { @list $suite, { in turn on $server => $open }, }
    };
    ($suite:ident, $pair:expr, expires_by_itself) => {
        $crate::event_conformance! { @list $suite, { $pair }, }
    };
    ($suite:ident, $pair:expr) => {
        $crate::event_conformance! { @list $suite, { $pair },
            lets_go_of_what_is_old_in_small_steps
        }
    };
}

/// Defines a module of tests with the behaviours of a [`HotStore`](crate::HotStore). Each test has
/// two replicas. A store of a single process uses the same replica twice.
#[macro_export]
macro_rules! hot_conformance {
    ($suite:ident, in turn on $server:expr => $open:path) => {
        $crate::hot_conformance! { @list $suite, { in turn on $server => $open } }
    };
    ($suite:ident, $pair:expr) => {
        $crate::hot_conformance! { @list $suite, { $pair } }
    };
    (@list $suite:ident, $pair:tt) => {
        $crate::conformance_tests! { $suite, $pair,
            hot {
                finds_who_owns_a_session
                a_hint_ends_with_its_time
                a_word_reaches_every_listener_once_and_in_order
                a_word_reaches_nobody_who_listens_later
                a_longer_notification_is_not_passed_on
                many_words_at_once_arrive
                a_budget_is_one_for_all_replicas
                what_was_used_of_a_budget_counts_whatever_there_was
                a_budget_is_closed_for_seconds_at_most
                a_budget_comes_back_at_its_rate
                many_budgets_are_asked_for_at_once
                a_replica_gets_places_up_to_the_limit_and_keeps_what_it_uses
                nothing_fails_after_close
            }
        }
    };
}

/// Shared part of the macros above.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    // One test for each subject, if starting a server costs more than a behaviour. Each behaviour
    // has its own database on that server.
    ($suite:ident, { on $server:expr => $open:path }, $($subject:ident { $($behaviour:ident)* })*) => {
        mod $suite {
            $(
                #[tokio::test]
                async fn $subject() {
                    let server = $server;
                    let behaviours: Vec<(&str, futures_util::future::LocalBoxFuture<'_, ()>)> = vec![$((
                        stringify!($behaviour),
                        Box::pin(async {
                            let store = $open(&server).await;
                            $crate::conformance::$subject::$behaviour(&store).await.expect("the store answers");
                            $crate::ConfigStore::close(&store).await;
                        }),
                    )),*];
                    $crate::conformance::some_at_a_time(behaviours).await;
                }
            )*
        }
    };
    // The same on a server that has one database. `OPEN` empties it, and behaviours run in turn.
    ($suite:ident, { in turn on $server:expr => $open:path }, $($subject:ident { $($behaviour:ident)* })*) => {
        mod $suite {
            $(
                #[tokio::test]
                async fn $subject() {
                    let server = $server;
                    $(
                        eprintln!("{}", stringify!($behaviour));
                        let store = $open(&server).await;
                        $crate::conformance::$subject::$behaviour(&store).await.expect("the store answers");
                    )*
                }
            )*
        }
    };
    ($suite:ident, $pair:expr, $($subject:ident { $($behaviour:ident)* })*) => {
        mod $suite {
            $(mod $subject {
                $(
                    #[tokio::test]
                    async fn $behaviour() {
                        let (_kept, store) = $pair;
                        $crate::conformance::$subject::$behaviour(&store).await.expect("the store answers");
                    }
                )*
            })*
        }
    };
}

#[cfg(test)]
mod tests {
    /// Returns the functions of a file that take a store and nothing else.
    fn behaviours(text: &str) -> impl Iterator<Item = &str> {
        let heads = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        heads
            .filter_map(|head| head.split_once('('))
            .filter(|(_, rest)| rest.contains(": &dyn ") || rest.contains(": &Replicas"))
            .map(|(name, _)| name)
    }

    #[test]
    fn every_behaviour_is_in_a_list() {
        let lists: Vec<&str> = include_str!("lists.rs").lines().map(str::trim).collect();
        let files = [
            include_str!("approvals.rs"),
            include_str!("audit.rs"),
            include_str!("audit_chain.rs"),
            include_str!("config.rs"),
            include_str!("events.rs"),
            include_str!("hot.rs"),
            include_str!("nodes.rs"),
            include_str!("sessions.rs"),
            include_str!("task_inputs.rs"),
            include_str!("task_limits.rs"),
            include_str!("tasks.rs"),
        ];
        let missing: Vec<&str> = files
            .iter()
            .flat_map(|text| behaviours(text))
            .filter(|name| *name != "fill" && !lists.contains(name))
            .collect();
        assert!(missing.is_empty(), "nothing runs {missing:?}");
    }
}
