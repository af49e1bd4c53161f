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
                a_replaced_tenant_keeps_its_creation_time
                a_tenant_is_added_only_if_it_does_not_exist
                settings_are_kept_byte_for_byte
                a_removal_returns_whether_the_tenant_existed
                keys_and_backends_are_removed_with_their_tenant
                keys_are_listed_for_one_tenant_only
                a_repeated_key_id_is_refused
                a_key_is_removed_only_for_its_tenant
                a_key_or_backend_without_a_tenant_is_refused
                backends_are_listed_by_tenant_and_name
                a_replaced_backend_keeps_its_creation_time
                two_tenants_may_have_a_backend_of_the_same_name
                concurrent_writes_are_all_stored
                every_change_increases_the_version
                the_version_stays_while_nothing_changes
                a_change_that_was_checked_at_an_earlier_version_is_refused
                of_changes_that_were_checked_at_one_version_one_is_made
                a_replaced_policy_keeps_its_creation_time
                a_policy_is_removed_once_and_with_its_tenant
                a_policy_of_an_unknown_tenant_is_refused
                counts_changes_of_policies
                a_breaker_is_held_open_until_its_release_or_the_removal_of_its_backend
                refuses_after_close
            }
            catalog_documents {
                documents_are_kept_replaced_and_listed_in_order
                a_document_is_removed_once_and_with_its_tenant
                a_document_of_an_unknown_tenant_is_refused
                counts_changes_of_documents
            }
            credentials {
                operators_are_kept_as_given_and_listed_by_name
                an_operators_name_and_id_are_unique
                revocations_are_kept_and_replaced
                issuers_of_tenants_are_kept_and_replaced
                credentials_end_with_their_tenant
                credentials_of_an_unknown_tenant_are_refused
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
                a_change_and_its_audit_record_are_stored_together
            }
            results {
                a_result_is_kept_as_given_for_its_principal_only
                a_result_expires_and_is_removed
                the_oldest_results_of_a_principal_are_evicted
                a_tenant_without_capacity_stores_no_result
                a_result_without_capacity_evicts_nothing
                an_expired_result_needs_no_capacity
                results_end_with_their_backend_and_tenant
            }
            approvals {
                an_approval_is_kept_as_given
                an_equal_call_joins_an_approval_and_another_call_does_not
                only_one_of_many_decisions_is_stored
                a_decision_and_its_audit_record_are_stored_together
                an_approval_is_used_by_one_call_which_may_repeat_the_use
                an_approval_whose_tool_changed_is_not_used
                pending_approvals_are_counted_by_tenant
                a_denied_approval_is_not_used_and_the_next_call_opens_a_new_one
                an_approval_expires_pending_and_approved
                a_window_permits_other_arguments_until_it_ends
                a_window_of_zero_duration_is_closed
                limits_of_pending_approvals_are_exact
                approvals_are_listed_by_state_and_backend_in_pages
                final_approvals_are_removed_by_age
                expired_approvals_are_removed_by_an_age_of_their_own
                approvals_end_with_their_backend_and_their_tenant
            }
            restores {
                a_restored_copy_continues_no_session_and_no_approval
                a_restored_copy_sends_no_queued_task
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
                a_grant_that_is_made_again_has_no_earlier_version
                the_error_of_a_grant_stays_until_its_next_write
                only_one_of_many_gets_the_lease_of_a_grant
                a_lease_of_a_grant_that_ends_too_late_is_over
                connected_grants_are_found_by_age_and_grants_are_counted
                weak_grants_are_counted_by_tenant
                grants_end_with_their_backend_and_their_tenant
                a_secret_is_taken_once_and_expires
                the_first_added_secret_stays_until_it_expires
                a_secret_is_removed_only_with_its_bytes
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
                an_approval_of_pins_is_applied_as_a_whole
                approved_hashes_are_kept_up_to_a_number
                a_block_lasts_until_an_approval
                removed_objects_are_marked_and_forgotten_on_request
                a_backend_has_a_limited_number_of_pins
                pins_end_with_their_backend_and_their_tenant
                decisions_are_counted_and_change_the_version
            }
            nodes {
                a_lease_starts_when_a_node_joins
                nodes_are_listed_by_name
                joining_may_be_repeated
                a_renewal_extends_the_lease
                a_lapsed_lease_is_not_renewed
                an_unknown_node_has_no_lease
                a_node_that_leaves_is_removed_at_once
                a_renewal_returns_the_version_of_the_configuration
                a_renewal_returns_the_sessions_to_end
            }
            sessions {
                an_opened_session_is_kept_as_given
                opening_a_session_may_be_repeated_only_by_its_owner
                many_sessions_open_in_one_batch
                an_update_replaces_only_the_given_parts
                an_update_stores_the_time_of_the_last_client_message
                writes_without_the_right_epoch_change_nothing
                a_fenced_write_does_not_fail_its_batch
                an_ended_session_is_removed
                a_live_owner_keeps_its_session
                a_session_of_a_dead_owner_can_be_claimed
                an_owner_with_a_lapsed_lease_keeps_an_unclaimed_session
                an_owner_may_claim_again
                a_released_session_can_be_claimed_by_any_node
                a_claim_needs_the_same_session_scope
                only_one_of_many_claims_succeeds
                a_claim_updates_the_last_activity_of_a_session
                rows_of_an_earlier_node_name_can_be_reclaimed
                a_live_owner_is_requested_to_end_a_session
                a_session_without_a_live_owner_is_ended_at_once
                a_sweep_removes_unowned_and_unused_sessions
                subscriptions_are_counted_by_resource
                a_subscription_is_removed_on_request
                sessions_are_listed_in_pages
                a_page_of_sessions_can_start_after_a_removed_session
                sessions_are_found_by_digest
                sessions_end_with_their_tenant
            }
            tasks {
                a_new_task_is_kept_as_given
                steps_are_kept
                an_ended_task_has_its_outcome
                an_id_with_nul_names_no_task
                an_ended_task_never_changes
                anybody_may_cancel
                only_one_of_two_outcomes_is_stored
                writes_without_the_right_epoch_change_nothing
                tasks_of_dead_owners_are_claimed
                two_nodes_never_claim_the_same_task
                a_node_does_not_claim_its_own_tasks
                a_released_task_can_be_claimed_by_any_node
                a_task_that_a_node_excludes_is_claimed_by_others
                a_node_can_claim_released_tasks_only
                rows_of_an_earlier_node_name_can_be_reclaimed
                the_store_returns_the_remaining_time_of_a_task
                an_audience_sees_its_own_tasks_only
                operators_see_tasks_by_tenant_and_status
                a_page_can_start_after_a_removed_task
            }
            task_limits {
                creating_a_task_may_be_repeated_only_by_its_owner
                a_repeated_request_finds_its_task
                the_same_request_twice_in_a_batch_is_one_task
                only_one_of_many_repeated_requests_creates_the_task
                task_limits_apply_within_a_batch
                limits_hold_among_many
                a_finished_task_frees_a_permit_for_a_running_one
                requests_details_and_outcomes_count_as_bytes
                open_inputs_count_as_bytes_until_they_are_closed
                expired_results_free_their_capacity
                expiry_removes_at_most_its_limit_of_tasks
                tasks_end_with_their_tenant
                a_tenant_with_many_tasks_is_removed
            }
            task_inputs {
                a_question_makes_the_task_wait
                a_repeated_question_is_stored_once
                the_first_answer_counts
                only_one_of_many_answers_is_stored
                the_last_answer_resumes_the_task
                a_question_survives_its_owner
                an_ended_task_has_no_open_questions
                a_task_snapshot_changes_with_each_input
            }
            tenants {
                a_new_tenant_has_nothing_of_an_earlier_one
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
                an_empty_log_has_no_streams
                a_stream_is_read_as_it_was_written
                streams_are_listed_by_number_over_all_owners
                events_after_a_position_are_returned
                a_position_ahead_of_the_log_is_detected
                frames_are_kept_byte_for_byte
                events_are_kept_when_their_stream_is_written_again
                a_repeated_append_is_stored_once
                trimmed_events_are_removed
                entries_are_applied_in_order
                a_dropped_stream_is_removed
                an_event_of_an_unknown_stream_is_not_stored
                keeps_sessions_apart
                forgets_a_session
                keeps_what_is_young
                many_entries_are_stored_at_once
                concurrent_appends_are_all_stored
            }
        }
    };
    ($suite:ident, on $server:expr => $open:path) => {
        $crate::event_conformance! { @list $suite, { on $server => $open },
            old_events_are_removed_in_small_steps
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
            old_events_are_removed_in_small_steps
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
                the_owner_hint_of_a_session_is_shared_by_all_replicas
                a_hint_expires
                a_wakeup_reaches_every_listener_once_and_in_order
                a_wakeup_does_not_reach_later_listeners
                a_notification_over_the_limit_is_not_published
                many_wakeups_at_once_are_delivered
                all_replicas_share_one_budget
                used_budget_is_counted_even_if_it_exceeds_the_remaining
                an_overdrawn_budget_is_closed_for_seconds_at_most
                a_budget_is_refilled_at_its_rate
                many_budgets_are_requested_at_once
                a_replica_gets_permits_up_to_the_limit_and_keeps_permits_in_use
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
            include_str!("restores.rs"),
            include_str!("sessions.rs"),
            include_str!("task_inputs.rs"),
            include_str!("task_limits.rs"),
            include_str!("tasks.rs"),
            include_str!("tenants.rs"),
        ];
        let missing: Vec<&str> = files
            .iter()
            .flat_map(|text| behaviours(text))
            .filter(|name| *name != "fill" && !lists.contains(name))
            .collect();
        assert!(missing.is_empty(), "nothing runs {missing:?}");
    }
}
