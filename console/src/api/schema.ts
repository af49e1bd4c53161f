// Generated from docs/openapi.json by `npm run types`.
export interface paths {
    "/admin/v1/activity": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Lists recent requests of the answering replica that failed, or that an access policy did not
         *     plainly allow.
         */
        get: operations["list_activity"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists audit records, oldest first by default. */
        get: operations["list_audit_records"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/audit/chains": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Lists the chains of the audit log.
         *     Each tenant has one chain, and records without a tenant have one.
         */
        get: operations["list_audit_chains"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/audit/export": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Exports audit records as JSON lines, to the end of the log.
         *     `limit` is the number of records per database read.
         */
        get: operations["export_audit_records"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/audit/verify": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Verifies records of one chain, from its beginning or from the end of the page before.
         *     A record that does not match is not an error of the request. The answer names it.
         */
        get: operations["verify_audit_chain"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/backends": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the status of the backends of all tenants that the operator sees. */
        get: operations["list_all_backends"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/configuration": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows the configuration's generation, and the reason of the last refused reload. */
        get: operations["show_configuration"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/configuration/effective": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Shows the configuration in force at this replica, without secrets.
         *     Defaults, the file, its included files and the environment are merged.
         */
        get: operations["show_effective_configuration"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Stops taking new work, finishes the work in progress, then ends the process. */
        post: operations["drain"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/log": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows the log filter of this replica. */
        get: operations["show_log_filter"];
        /**
         * Sets the log filter of this replica for a time.
         *     It ends earlier if a reload changes `telemetry.log`.
         */
        put: operations["put_log_filter"];
        post?: never;
        /** Returns to the log filter of the configuration. */
        delete: operations["reset_log_filter"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/nodes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the replicas with a valid lease. */
        get: operations["list_nodes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/nodes/{node}/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Drains the named replica.
         *     Any replica answers, and sends the request to the named one.
         */
        post: operations["drain_node"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/openapi.json": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Returns this document. */
        get: operations["show_openapi"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/operator": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Returns the operator who asks, with its permissions. */
        get: operations["show_signed_in_operator"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/operators": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the operators by name, without their tokens. */
        get: operations["list_operators"];
        put?: never;
        /**
         * Creates an operator.
         *     Only this answer contains the token.
         */
        post: operations["create_operator"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/operators/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Revokes an operator at once. */
        delete: operations["revoke_operator"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/overview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Shows the state of the answering replica at one glance, for the tenants and backends that the
         *     operator sees.
         *     A request with `If-None-Match` gets 304 while nothing has changed.
         */
        get: operations["show_overview"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Lists the client sessions of all replicas, oldest first.
         *     Their ids are digests, because a session id is a secret of its client.
         */
        get: operations["list_sessions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/sessions/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows one session. */
        get: operations["show_session"];
        put?: never;
        post?: never;
        /** Ends a session on any replica. */
        delete: operations["end_session"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/subscriptions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the resources with subscribers. */
        get: operations["list_subscriptions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tasks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists tasks, oldest first. */
        get: operations["list_tasks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tasks/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows one task with its history. */
        get: operations["show_task"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tasks/{id}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Cancels a task. */
        post: operations["cancel_task"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists all tenants. */
        get: operations["list_tenants"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows one tenant. */
        get: operations["show_tenant"];
        /** Creates or replaces a tenant. */
        put: operations["put_tenant"];
        post?: never;
        /** Removes a tenant with its keys and backends, and ends its sessions. */
        delete: operations["remove_tenant"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/approvals": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the calls of a tenant that wait, or waited, for the approval of a person. The newest comes first. */
        get: operations["list_approvals"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/approvals/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows one approval. */
        get: operations["show_approval"];
        put?: never;
        /**
         * Approves or denies a call that waits.
         *     The first decision counts; a second one is 409.
         */
        post: operations["decide_approval"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the tenant's backends. */
        get: operations["list_backends"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows the status and settings of one backend. */
        get: operations["show_backend"];
        /**
         * Registers or replaces a backend.
         *     Answers after the first handshake. `state` and `last_error` show a failure.
         */
        put: operations["put_backend"];
        post?: never;
        /** Removes a backend and closes its links. */
        delete: operations["remove_backend"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}/breaker": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Holds the circuit breaker open on every replica, or releases it.
         *     It stays open until a request releases it. A release also closes the breaker of the replica that
         *     answers.
         */
        post: operations["set_breaker"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}/pins": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the pins of a backend: its definitions and what operators decided about them. */
        get: operations["list_pins"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}/pins/approve": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Approves definitions on every replica: all of the named ones, or none.
         *     A definition that is not the one seen last is refused with 409.
         */
        post: operations["approve_pins"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}/pins/block": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Blocks objects on every replica, whatever their definitions: all of the named ones, or none. */
        post: operations["block_pins"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}/pins/{kind}/{name}/diff": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows what is new in one object since an operator accepted it. */
        get: operations["diff_pin"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}/probe": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Reconnects or refreshes the lists now, and returns the result. */
        post: operations["probe_backend"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/backends/{backend}/roots": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Adds a root, or gives a known one another name.
         *     Open connections to the backend get `notifications/roots/list_changed`.
         */
        post: operations["add_root"];
        /**
         * Removes a root.
         *     Open connections to the backend get `notifications/roots/list_changed`.
         */
        delete: operations["remove_root"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/catalog": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the tools, prompts, resources and templates of a tenant's backends. */
        get: operations["list_catalog"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/catalog/cost": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows what the tools of a tenant, or of a toolset, cost the context of a model. */
        get: operations["show_catalog_cost"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/connections": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the accounts that principals of the tenant connected at backends. */
        get: operations["list_connections"];
        put?: never;
        /** Makes a one-time address at which a principal signs in and connects an account. */
        post: operations["create_connect_link"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Ends a connection. The broker revokes its tokens at the authorization server if that is possible. */
        delete: operations["end_connection"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}/test": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Tests whether the backend accepts the principal's account, with a connection that ends at once. */
        post: operations["test_connection"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/issuers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the issuers whose tokens are of this tenant alone. */
        get: operations["list_issuers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/issuers/{issuer}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows one issuer. */
        get: operations["show_issuer"];
        /**
         * Creates or replaces an issuer under a name.
         *     It is in force on every replica within a second. `tenant`, `tenant_claim`, `tenants`, `check`,
         *     `introspection` and `registration.secret_file` are refused: they are for the configuration file.
         */
        put: operations["put_issuer"];
        post?: never;
        /** Removes an issuer. Its tokens are refused at once. */
        delete: operations["remove_issuer"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the tenant's API keys, without the keys themselves. */
        get: operations["list_keys"];
        put?: never;
        /**
         * Creates an API key.
         *     Only this answer contains it.
         */
        post: operations["create_key"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/keys/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Revokes an API key at once. */
        delete: operations["revoke_key"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/policy": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows the access policy of a tenant. */
        get: operations["show_policy"];
        /**
         * Creates or replaces the access policy of a tenant.
         *     A policy whose own test fails is refused with 409.
         */
        put: operations["put_policy"];
        post?: never;
        /** Removes the access policy of a tenant. Everything is allowed then. */
        delete: operations["remove_policy"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/policy/check": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Decides about one use of an object, and explains the decision. */
        post: operations["check_policy"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/policy/report": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Shows what the policy decided at this replica: refusals, and what rules in shadow mode would
         *     change.
         */
        get: operations["report_policy"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/prompts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the prompts that the broker hosts for a tenant. */
        get: operations["list_prompts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/prompts/{prompt}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows one of the prompts that the broker hosts for a tenant. */
        get: operations["show_prompt"];
        /** Creates or replaces a prompt. A placeholder of an unknown argument is refused with 422. */
        put: operations["put_prompt"];
        post?: never;
        /** Removes a prompt. */
        delete: operations["remove_prompt"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/revocations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the revocations of a tenant. */
        get: operations["list_revocations"];
        put?: never;
        /**
         * Revokes the tokens of a principal, or one token.
         *     Their sessions, streams and links end at once.
         */
        post: operations["revoke_tokens"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/revocations/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Removes a revocation.
         *     The tokens that it named are valid again.
         */
        delete: operations["remove_revocation"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/toolsets": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the toolsets of a tenant. */
        get: operations["list_toolsets"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/toolsets/{toolset}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Shows one of the toolsets of a tenant. */
        get: operations["show_toolset"];
        /** Creates or replaces a toolset. A published one whose names are ambiguous is refused with 409. */
        put: operations["put_toolset"];
        post?: never;
        /** Removes a toolset. Its endpoint is gone, and an enforced one holds no caller any more. */
        delete: operations["remove_toolset"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/admin/v1/tenants/{tenant}/try": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Opens the event stream of a trial's session. */
        get: operations["listen_to_trial"];
        put?: never;
        /**
         * Sends a message to the data plane as a subject that the operator names.
         *     `Mcp-Broker-Subject` is the subject as base64url of JSON, with the members of `as` of a policy
         *     check. All else is as for a POST to `/mcp`.
         */
        post: operations["try_message"];
        /** Ends the session of a trial. */
        delete: operations["end_trial"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/healthz": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Liveness: the process runs. */
        get: operations["show_health"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Metrics as Prometheus text. */
        get: operations["show_metrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/readyz": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Readiness for new work.
         *     Everything is loaded, no drain has begun, and the database is reachable.
         */
        get: operations["show_readiness"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description A recent request that failed, or that the access policy did not plainly allow. */
        ActivityEntry: {
            /**
             * Format: int64
             * @description Increases with every entry of this replica.
             */
            number: number;
            at: string;
            tenant: string;
            principal: string;
            transport: string;
            /** @description MCP method. */
            method: string;
            /** @description Tool, prompt or resource as the client names it, or digest of a task. */
            target?: string | null;
            backend?: string | null;
            /** @description Outcome as in `mcp_requests_total`. */
            outcome: string;
            error?: string | null;
            /** @description Verdict of the access policy, and the rule that decided. */
            verdict?: string | null;
            rule?: string | null;
            /** Format: double */
            duration_ms: number;
            /** @description Request id, as in the log and in errors for clients. */
            request_id: string;
            trace_id?: string | null;
        };
        ActivityList: {
            /** @description Name of the replica that answers. The entries are its own. */
            replica: string;
            /** @description Oldest first. */
            entries: components["schemas"]["ActivityEntry"][];
        };
        /**
         * @description Token of the broker as the acting party (RFC 8693, 2.1).
         * @enum {string}
         */
        ActorToken: "access_token" | "jwt";
        /** @description Hints of a tool. They can be tightened only. */
        AnnotationOverride: {
            /** @default null */
            title: string | null;
            /**
             * @description May be `false`.
             * @default null
             */
            readOnlyHint: boolean | null;
            /**
             * @description May be `true`.
             * @default null
             */
            destructiveHint: boolean | null;
            /**
             * @description May be `false`.
             * @default null
             */
            idempotentHint: boolean | null;
            /**
             * @description May be `true`.
             * @default null
             */
            openWorldHint: boolean | null;
        };
        ApprovalList: {
            approvals: components["schemas"]["ApprovalView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A call that waits, or waited, for the approval of a person. */
        ApprovalView: {
            id: string;
            /** @description Principal of the caller, as sessions show it. */
            principal: string;
            backend: string;
            /** @description The backend's name of the tool. */
            tool: string;
            /**
             * @description The arguments exactly as the client sent them. Only for operators who may decide; absent
             *     once the approval has expired.
             */
            arguments?: unknown;
            /** @description The same as a text, because many readers of JSON round large numbers. Absent in lists. */
            arguments_text?: string | null;
            /** @description Hash of the arguments with sorted members and without white space. */
            arguments_hash: string;
            /** @description Hash of the tool's definition. */
            definition: string;
            /**
             * @description Hash of the tool's pin, to which the approval is bound. Absent: the tool is not pinned, and
             *     the approval is bound to the definition.
             */
            pin?: string | null;
            /**
             * @description True if the tool is not the one that the call was made for: its definition changed, or it
             *     is not listed or held by now. Such a call is not executed.
             */
            tool_changed: boolean;
            /** @description `pending`, `approved`, `denied`, `expired` or `used`. */
            state: string;
            /** @description Id of the policy's rule. */
            rule: string;
            /** @description Text of the rule. */
            rule_reason?: string | null;
            by?: components["schemas"]["Approvers"] | null;
            /** @description Whether another person than the caller must decide. */
            four_eyes: boolean;
            created_at: string;
            /** @description End of the time for the decision, or for the use of an approval. */
            expires_at: string;
            /** @description Operator who decided. */
            decided_by?: string | null;
            decided_at?: string | null;
            reason?: string | null;
            /** @description Until then, calls of the tool by the principal need no other approval. */
            window_until?: string | null;
        };
        /** @description Operators who may approve: those with one of the roles, and those in one of the groups. */
        Approvers: {
            /**
             * @description Roles of operators.
             * @default []
             */
            roles: string[];
            /**
             * @description Groups of operators who signed in with a token of an issuer.
             * @default []
             */
            groups: string[];
        };
        /** @description What a toolset changes of one argument. */
        ArgumentOverride: {
            /** @description The value in every call, whatever the client sends. */
            const?: unknown;
            /**
             * @description Whether clients do not see the argument. Without a value, no call has it.
             * @default false
             */
            hidden: boolean;
        };
        /** @description One record of the audit log. */
        AuditEntry: {
            /**
             * Format: int64
             * @description Increases with every record. The number of the last record of a page is the start of the
             *     next page.
             */
            number?: number;
            at: string;
            /** @description `admin`: a change by an operator, or an attempt; `call`: a request of a client. */
            kind: string;
            /** @description Tenant of the record; absent if it concerns none. */
            tenant?: string | null;
            /** @description Actor: a tenant's principal, `admin`, `configuration`, or `unknown` for a failed sign-in. */
            principal: string;
            /** @description API key of the request. */
            api_key?: string | null;
            /** @description MCP method, HTTP method and route of the admin API, or `sign_in`. */
            action: string;
            /** @description Tool, prompt or resource as the client names it, digest of a task, or path of the admin API. */
            target?: string | null;
            backend?: string | null;
            /** @description The tool under its backend's name, for calls at a toolset. */
            tool?: string | null;
            /** @description Hash of the tool's definition, as the backend listed it at that time. */
            definition?: string | null;
            /** @description Approval by which a call passed, or that it waited for. */
            approval?: string | null;
            /** @description Hash of the arguments, or of the body. */
            arguments_digest?: string | null;
            /** @description Redacted arguments, only if that is configured. */
            arguments?: unknown;
            /** @description The policy before a change of it, and after. A policy of more than 64 KiB is a digest. */
            before?: unknown;
            after?: unknown;
            /** @description Outcome as in `mcp_requests_total`, status of a task, or status of an HTTP response. */
            outcome: string;
            error?: string | null;
            /** Format: double */
            duration_ms?: number | null;
            /** @description Request id, as in the log and in errors for clients. */
            request_id: string;
            trace_id?: string | null;
            /** @description Digest of the session id. */
            session?: string | null;
            transport?: string | null;
            /**
             * @description Address of the operator, of the client, or of the failed sign-in. For a failed sign-in over
             *     IPv6 it is the /64.
             */
            address?: string | null;
            /**
             * Format: int64
             * @description Number of such failed sign-ins within a minute, or of such refused requests since the last
             *     record of one; absent in other records.
             */
            count?: number | null;
            /** @description Replica that recorded it. */
            node: string;
        };
        AuditList: {
            records: components["schemas"]["AuditEntry"][];
            /**
             * Format: int64
             * @description Value of `after` for the next page; absent on the last page.
             */
            next?: number | null;
        };
        /** @description Result of the verification of a page. */
        AuditVerdict: {
            /** @description Number of valid records on this page. */
            records: number;
            /**
             * Format: int64
             * @description Number of the last valid record.
             */
            last?: number | null;
            misfit?: components["schemas"]["MisfitView"] | null;
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description How the broker proves itself to a backend. */
        BackendAuth: {
            type: components["schemas"]["BackendAuthKind"];
            /** @description Id of the broker at the authorization server. */
            client_id?: string | null;
            client_secret?: string | null;
            /** @description Private key in PEM (PKCS #8) for `private_key_jwt`: RSA, P-256 or Ed25519. */
            client_key?: string | null;
            /** @description `kid` of the assertions that the key signs. */
            client_key_id?: string | null;
            token_endpoint_auth_method?: components["schemas"]["ClientAuthMethod"] | null;
            /** @description Scopes of the tokens. Absent: those that the backend names. */
            scopes?: string[];
            /**
             * @description The only authorization server that gets the credential. Absent: the first one that the
             *     backend names.
             */
            issuer?: string | null;
            /** @description Resource that the tokens are for. Absent: the one that the backend's metadata names. */
            resource?: string | null;
            /** @description Address of the client ID metadata document. Absent: that of the broker. */
            client_metadata_url?: string | null;
            /** @description How issuers are compared. */
            issuer_compare?: components["schemas"]["IssuerComparison"];
            /** @description Whose tokens fetch the lists of the backend. For types with tokens of each principal. */
            catalog_auth?: components["schemas"]["CatalogAuth"];
            catalog?: components["schemas"]["DeclaredCatalog"] | null;
            /** @description How the caller's token is exchanged. For `token_exchange` only. */
            grant?: components["schemas"]["ExchangeGrant"];
            /** @description Value of `audience` in exchanges. For `token_exchange` only. */
            audience?: string | null;
            actor_token?: components["schemas"]["ActorToken"] | null;
            provider?: components["schemas"]["IdentityProvider"] | null;
        };
        /**
         * @description Kind of proof.
         * @enum {string}
         */
        BackendAuthKind: "none" | "bearer" | "headers" | "oauth_client" | "oauth_user" | "token_exchange" | "enterprise";
        /** @description Circuit breaker of one backend. An absent setting has the configuration's default. */
        BackendBreaker: {
            /** @default null */
            enabled: boolean | null;
            /**
             * Format: int32
             * @description Consecutive failures that open it.
             * @default null
             */
            failures: number | null;
            /**
             * Format: double
             * @description Share of failures in the window that opens it.
             * @default null
             * @example 0.5
             */
            error_ratio: number | null;
            /**
             * Format: int32
             * @description Minimum number of calls in the window before the share counts.
             * @default null
             */
            requests: number | null;
            /** @default null */
            window: components["schemas"]["DurationText"];
            /**
             * @description Maximum wait for the first probe.
             * @default null
             */
            probe_after: components["schemas"]["DurationText"];
            /**
             * @description Longest wait between two probes.
             * @default null
             */
            probe_max: components["schemas"]["DurationText"];
        };
        /** @description Limits of one backend. An absent one has the tenant's value, then the configuration's. */
        BackendLimits: {
            /**
             * Format: int32
             * @description Rate of requests to the backend. 0 is unlimited.
             * @default null
             */
            requests_per_second: number | null;
            /**
             * Format: int32
             * @default null
             */
            burst: number | null;
            /**
             * Format: int32
             * @description Rate of calls of each of its tools.
             * @default null
             */
            requests_per_second_per_tool: number | null;
            /**
             * Format: int32
             * @default null
             */
            burst_per_tool: number | null;
            /**
             * @description Rates of some of its tools, by the backend's own names.
             * @default {}
             */
            tools: {
                [key: string]: components["schemas"]["RateSpec"];
            };
            /**
             * @description Maximum number of concurrent calls. Further calls wait.
             * @default null
             */
            calls_in_flight: number | null;
            /**
             * @description Maximum number of waiting calls. Further calls are refused.
             * @default null
             */
            calls_queued: number | null;
            /**
             * @description True if the broker sends fewer concurrent calls while the backend is slower than it can be.
             * @default null
             */
            adaptive_concurrency: boolean | null;
            /**
             * @description Name of the profile for the sizes of its messages.
             * @default null
             */
            message_profile: string | null;
        };
        BackendList: {
            backends: components["schemas"]["BackendView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description Settings of a backend. Values that may be secret are masked. */
        BackendSettings: {
            transport: components["schemas"]["TransportSpec"];
            /** @description Paths of the certificate files. The contents of the files are never shown. */
            tls?: components["schemas"]["BackendTls"];
            links: components["schemas"]["LinkSharing"];
            protocol: components["schemas"]["ProtocolChoice"];
            timeouts: components["schemas"]["BackendTimeouts"];
            breaker?: components["schemas"]["BackendBreaker"];
            limits?: components["schemas"]["BackendLimits"];
            /** @description Absent without credentials, as in the body of PUT. */
            credentials?: components["schemas"]["CredentialsView"];
            /** @description How the broker proves itself, without secrets. */
            auth?: components["schemas"]["BackendAuth"];
            resources?: components["schemas"]["ResourceRules"];
            roots?: components["schemas"]["RootRules"];
            tools?: components["schemas"]["ToolRules"];
            sandbox?: components["schemas"]["SandboxRules"];
            pins?: components["schemas"]["PinSettings"];
        };
        /** @description A backend: an MCP server that the broker connects to. */
        BackendSpec: {
            transport: components["schemas"]["TransportSpec"];
            tls?: components["schemas"]["BackendTls"];
            links?: components["schemas"]["LinkSharing"];
            protocol?: components["schemas"]["ProtocolChoice"];
            timeouts?: components["schemas"]["BackendTimeouts"];
            breaker?: components["schemas"]["BackendBreaker"];
            limits?: components["schemas"]["BackendLimits"];
            credentials?: components["schemas"]["Credentials"];
            auth?: components["schemas"]["BackendAuth"];
            resources?: components["schemas"]["ResourceRules"];
            roots?: components["schemas"]["RootRules"];
            tools?: components["schemas"]["ToolRules"];
            sandbox?: components["schemas"]["SandboxRules"];
            pins?: components["schemas"]["PinSettings"];
        };
        /** @description State of one backend. */
        BackendStatus: {
            tenant: string;
            backend: string;
            /** @description `connecting`, `ready`, `degraded` (serving the last valid lists), `failed` or `disabled`. */
            state: string;
            protocol_version?: string | null;
            server_name?: string | null;
            server_version?: string | null;
            tools: number;
            prompts: number;
            resources: number;
            resource_templates: number;
            /** @description Open links to this backend. */
            links: number;
            last_error?: string | null;
            /**
             * @description Tools whose arguments are not checked despite `validate_arguments`, because their schemas
             *     cannot be used, each with the reason. Checked at the first call of a tool. At most 16 are
             *     shown.
             */
            unchecked_tools?: {
                [key: string]: string;
            };
            /**
             * Format: double
             * @description Mean latency of the most recent answers, in milliseconds.
             */
            latency_ms?: number | null;
            breaker?: components["schemas"]["BreakerStatus"] | null;
            /** @description Calls of this replica that are at the backend now. */
            calls_in_flight?: number;
            /** @description Calls that wait for capacity at the backend. */
            calls_queued?: number;
            /** @description Maximum number of concurrent calls. */
            calls_max?: number;
            /**
             * Format: int32
             * @description Consecutive failed attempts to connect to the backend or to start it. Connections that ended
             *     early count.
             */
            failed_attempts?: number;
            /**
             * Format: int64
             * @description Time until the next attempt, in milliseconds. Absent if it may start at once.
             */
            next_attempt_in_ms?: number | null;
            /**
             * @description Confinement of its child processes: `uid+landlock`, `uid`, `landlock` or `off`. Absent
             *     before the first child starts.
             */
            sandbox?: string | null;
            /** @description Protections that this host lacks for a better confinement. */
            sandbox_missing?: string[];
            /**
             * @description Why the user of its child processes cannot read or write paths of `sandbox.read` and
             *     `sandbox.write`.
             */
            sandbox_unreachable?: string[];
        };
        /** @description Deadlines of one backend. An absent one has the configuration's default. */
        BackendTimeouts: {
            /** @default null */
            call: components["schemas"]["DurationText"];
            /** @default null */
            control: components["schemas"]["DurationText"];
            /** @default null */
            initialize: components["schemas"]["DurationText"];
            /**
             * @description Maximum total time of a call, which progress does not extend.
             * @default null
             */
            call_max: components["schemas"]["DurationText"];
            /**
             * @description Deadlines by method. They have precedence over `call` and `control`.
             * @default {}
             */
            methods: {
                [key: string]: components["schemas"]["DurationText"];
            };
            /**
             * @description Deadlines by tool, under the backend's own names. They have precedence over `methods`.
             * @default {}
             */
            tools: {
                [key: string]: components["schemas"]["DurationText"];
            };
        };
        /**
         * @description Certificate that the broker presents to a backend that requests one, on every transport with
         *     TLS.
         */
        BackendTls: {
            /**
             * @description Path of a PEM file with the certificate and its chain up to the authority.
             * @default null
             */
            client_cert: string | null;
            /**
             * @description Path of a PEM file with the private key.
             * @default null
             */
            client_key: string | null;
        };
        /** @description Status and settings of a backend. */
        BackendView: {
            tenant: string;
            backend: string;
            /** @description `connecting`, `ready`, `degraded` (serving the last valid lists), `failed` or `disabled`. */
            state: string;
            protocol_version?: string | null;
            server_name?: string | null;
            server_version?: string | null;
            tools: number;
            prompts: number;
            resources: number;
            resource_templates: number;
            /** @description Open links to this backend. */
            links: number;
            last_error?: string | null;
            /**
             * @description Tools whose arguments are not checked despite `validate_arguments`, because their schemas
             *     cannot be used, each with the reason. Checked at the first call of a tool. At most 16 are
             *     shown.
             */
            unchecked_tools?: {
                [key: string]: string;
            };
            /**
             * Format: double
             * @description Mean latency of the most recent answers, in milliseconds.
             */
            latency_ms?: number | null;
            breaker?: components["schemas"]["BreakerStatus"] | null;
            /** @description Calls of this replica that are at the backend now. */
            calls_in_flight?: number;
            /** @description Calls that wait for capacity at the backend. */
            calls_queued?: number;
            /** @description Maximum number of concurrent calls. */
            calls_max?: number;
            /**
             * Format: int32
             * @description Consecutive failed attempts to connect to the backend or to start it. Connections that ended
             *     early count.
             */
            failed_attempts?: number;
            /**
             * Format: int64
             * @description Time until the next attempt, in milliseconds. Absent if it may start at once.
             */
            next_attempt_in_ms?: number | null;
            /**
             * @description Confinement of its child processes: `uid+landlock`, `uid`, `landlock` or `off`. Absent
             *     before the first child starts.
             */
            sandbox?: string | null;
            /** @description Protections that this host lacks for a better confinement. */
            sandbox_missing?: string[];
            /**
             * @description Why the user of its child processes cannot read or write paths of `sandbox.read` and
             *     `sandbox.write`.
             */
            sandbox_unreachable?: string[];
        } & {
            /** @description Name of the replica that answers. State, breaker, links and calls are its own. */
            replica?: string;
            settings: components["schemas"]["BackendSettings"];
            /**
             * @description `api`, or `config` for a backend of the configuration file, which can only be changed there,
             *     or `demo` for the one of `mcp-broker demo`, which cannot be changed.
             */
            source: string;
            created_at?: string | null;
            updated_at?: string | null;
        };
        /** @description State of a backend's circuit breaker. */
        BreakerStatus: {
            /** @description `closed`, `half_open` (a probe is running) or `open`. */
            state: string;
            /**
             * @description Reason why it is not closed: `failures_in_a_row`, `error_ratio`,
             *     `operator`, or `other_replica`: another replica found that it fails, and so did this one.
             */
            reason?: string | null;
            /** Format: int32 */
            failures_in_a_row: number;
            /**
             * Format: int64
             * @description Time until the next probe, in milliseconds. Absent while it is closed, and while an operator
             *     holds it open.
             */
            next_probe_ms?: number | null;
            verdict?: components["schemas"]["VerdictView"] | null;
        };
        /** @description Requested state of a breaker. */
        BreakerWanted: {
            /**
             * @description `open`: no replica sends calls until it is closed again; `closed`: calls are sent, and the
             *     breakers open by their rules.
             */
            state: components["schemas"]["TargetState"];
        };
        /**
         * @description Tokens with which the lists of a backend are fetched.
         * @enum {string}
         */
        CatalogAuth: "first_user" | "service" | "per_principal" | "declared";
        /** @description What the tools of an endpoint cost the context of a model. */
        CatalogCostView: {
            /** @description The toolset; absent: all backends. */
            toolset?: string | null;
            tools: number;
            /** Format: int64 */
            bytes: number;
            /**
             * Format: int64
             * @description Estimated tokens: a quarter of the bytes.
             */
            tokens: number;
            /** @description Advice if the tools take a large part of a context. */
            warning?: string | null;
            /** @description The tools that cost most, the first ones first. */
            most: components["schemas"]["ToolCostView"][];
        };
        /** @description A tool, prompt, resource or resource template of a backend. */
        CatalogItemView: {
            /** @description `tool`, `prompt`, `resource` or `template`. */
            kind: string;
            backend: string;
            /** @description Name or URI at the backend. */
            name: string;
            /** @description Name or URI on `/mcp`. */
            exposed_name: string;
            title?: string | null;
            description?: string | null;
            /** @description Size of the definition in bytes. */
            bytes: number;
            /** @description SHA-256 of the definition, as the audit log has it. */
            hash: string;
            /** @description True if the backend is unreachable and the definition may be outdated. */
            stale: boolean;
            /**
             * @description The definition as the backend lists it, with the task support that the broker adds. Only on
             *     request.
             */
            definition?: unknown;
        };
        CatalogList: {
            items: components["schemas"]["CatalogItemView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description Objects of a toolset. An absent member matches none. */
        CatalogSelector: {
            /**
             * @description `BACKEND/NAME`, by the backend's own names; `*` stands for any text.
             * @default []
             * @example [
             *       "files/read_*"
             *     ]
             */
            tools: string[];
            /** @default [] */
            prompts: string[];
            /**
             * @description `BACKEND/URI`, by the backend's own URIs.
             * @default []
             */
            resources: string[];
            /**
             * @description Classes of tools. They narrow `tools`; without `tools`, every tool of a class matches.
             * @default null
             */
            classes: components["schemas"]["ToolClass"][] | null;
        };
        /** @description Chains of the audit log. */
        ChainList: {
            chains: components["schemas"]["ChainView"][];
            /**
             * Format: int64
             * @description Records up to this number are older than the chains, and nothing protects them.
             */
            unchained_until: number;
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A chain of the audit log: the records of a tenant, or those without a tenant. */
        ChainView: {
            /** @description Tenant of the records; `null`: records without a tenant. */
            tenant?: string | null;
            /**
             * Format: int64
             * @description Number of records that were ever added.
             */
            count: number;
            /**
             * Format: int64
             * @description Number of records that the retention removed.
             */
            removed: number;
            /**
             * Format: int64
             * @description Number of records that the newest checkpoint covers.
             */
            covered: number;
        };
        /**
         * @description Authentication of the broker at the token endpoint.
         * @enum {string}
         */
        ClientAuthMethod: "client_secret_basic" | "client_secret_post" | "private_key_jwt" | "none";
        /** @description Configuration of this process. */
        ConfigurationView: {
            /**
             * Format: int64
             * @description 1 after the start, plus one for each applied reload.
             */
            generation: number;
            /** @description Time at which the generation was applied. */
            since: string;
            /** @description Sections that changed in the file and require a restart. */
            needs_restart: string[];
            refused?: components["schemas"]["RefusedReload"] | null;
            /** @description Files of `include.folder`. */
            files?: components["schemas"]["IncludedFileView"][];
        };
        /** @description A root as MCP names it. */
        ConfiguredRoot: {
            /** @example file:///srv/projects */
            uri: string;
            /** @description Name for people. */
            name?: string | null;
        };
        /** @description Person and backend of a one-time address. */
        ConnectLinkRequest: {
            /** @description Principal as sessions show it. */
            principal: string;
            /** @description Name of the backend. */
            backend: string;
        };
        /** @description A one-time address at which a person signs in to the connect page. */
        ConnectLinkView: {
            url: string;
            /**
             * Format: int64
             * @description Seconds for which it can be used.
             */
            expires_in: number;
        };
        ConnectionList: {
            connections: components["schemas"]["ConnectionView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description Result of a test of a connection. */
        ConnectionTestView: {
            /** @description Whether the backend accepted a handshake with the token of the principal. */
            ok: boolean;
            /** @description Why not: of the account, the authorization server or the backend. */
            error?: string | null;
        };
        /** @description An account that a principal connected at a backend. */
        ConnectionView: {
            principal: string;
            backend: string;
            /** @description Authorization server that gave the tokens. */
            issuer: string;
            /** @description `connected`, or `reconnect` if the principal must connect again. */
            state: string;
            /** @description End of the access token, which the broker renews. */
            expires_at?: string | null;
            /**
             * @description Why the last renewal of the token failed: `invalid_grant` (the server does not accept the
             *     refresh token any more), `refused` or `unavailable`. Absent: it did not fail.
             */
            last_error?: string | null;
        };
        /** @description A rule, and why it applied or not. */
        ConsideredRule: {
            rule: string;
            /** @description `applied`, `scopes_held`, `other_subject` or `other_object`. */
            outcome: string;
        };
        /**
         * @description Credentials of the broker at a backend. Never a client's own token. No answer of the admin API
         *     shows them.
         */
        Credentials: {
            /**
             * @description Sent as `Authorization: Bearer …` (HTTP).
             * @default null
             */
            bearer: string | null;
            /**
             * @description Further request headers (HTTP).
             * @default {}
             */
            headers: {
                [key: string]: string;
            };
        };
        /** @description Configured credentials, without their values. */
        CredentialsView: {
            bearer: boolean;
            /** @description Names of the further headers. */
            headers: string[];
        };
        /**
         * @description What an operator decides.
         * @enum {string}
         */
        DecisionName: "approve" | "deny";
        /** @description A decision about a call. */
        DecisionRequest: {
            decision: components["schemas"]["DecisionName"];
            /** @description Text for other operators. The caller sees it if the call is denied. */
            reason?: string | null;
            /**
             * @description Time for which calls of this tool by this principal need no other approval, such as `10m`.
             *     Only for an approval.
             */
            for?: components["schemas"]["DurationText"];
        };
        /** @description Lists of a backend, with entries as MCP has them. */
        DeclaredCatalog: {
            /** @default [] */
            tools: unknown[];
            /** @default [] */
            prompts: unknown[];
            /** @default [] */
            resources: unknown[];
            /** @default [] */
            resource_templates: unknown[];
        };
        /** @description A member that differs. Invisible characters have names, such as `<U+200B>`. */
        DefinitionChange: {
            /** @description JSON pointer to the member. */
            pointer: string;
            /** @description The member before. Absent: it was added. */
            before?: string | null;
            /** @description The member now. Absent: it was removed. */
            after?: string | null;
            /** @description For texts: one text in which `[-…-]` is removed and `{+…+}` is added. */
            text?: string | null;
        };
        /**
         * @description How much of a description clients get.
         * @enum {string}
         */
        DescriptionLength: "full" | "first_sentence";
        /**
         * @description A whole number with one unit. `null` is the same as leaving it out.
         * @example 30s
         */
        DurationText: string | null;
        /** @description The configuration in force at the replica that answers. */
        EffectiveConfigurationView: {
            /** @description The replica that answers. */
            node: string;
            /**
             * Format: int64
             * @description Generation of the configuration, as `GET /admin/v1/configuration` shows it.
             */
            generation: number;
            /**
             * @description Every section with every key, in the form of the configuration file. A secret is `***`. An
             *     absent key without a default is `null`.
             */
            configuration: Record<string, never>;
            /**
             * @description Source of each key that does not have its default, by the path of the key. Also the source of
             *     each tenant and backend.
             */
            sources: {
                [key: string]: components["schemas"]["SettingSource"];
            };
        };
        /** @description What a toolset changes of one tool or prompt. */
        EntryOverride: {
            /** @default null */
            title: string | null;
            /** @default null */
            description: string | null;
            /** @default {} */
            annotations: components["schemas"]["AnnotationOverride"];
            /**
             * @description Fixed and hidden arguments of a tool, by name.
             * @default {}
             */
            args: {
                [key: string]: components["schemas"]["ArgumentOverride"];
            };
            /**
             * Format: int32
             * @description Estimated tokens of the result of the tool at most, instead of that of the toolset.
             * @default null
             */
            max_result_tokens: number | null;
            /**
             * Format: int32
             * @description Position in the list: lower ones come first, then by backend and name.
             * @default 0
             */
            rank: number;
        };
        /** @description Where the tokens of an issuer can be exchanged. */
        ExchangeEntry: boolean | components["schemas"]["ExchangeIssuers"];
        /**
         * @description Grant by which the token of a caller becomes one for the backend.
         * @enum {string}
         */
        ExchangeGrant: "token_exchange" | "on_behalf_of";
        ExchangeIssuers: {
            issuers: string[];
        };
        /** @description One field at fault. */
        FieldFault: {
            field: string;
            detail: string;
        };
        /** @description Something that the scanner found in a definition. */
        Finding: {
            /** @description Id of the rule. */
            rule: string;
            severity: components["schemas"]["FindingSeverity"];
            /** @description JSON pointer to the text. */
            pointer: string;
            /** @description An excerpt of the text. Invisible characters have names, such as `<U+200B>`. */
            excerpt: string;
        };
        /**
         * @description Weight of a finding.
         * @enum {string}
         */
        FindingSeverity: "serious" | "notable";
        /**
         * @description Who the authorization server of clients is.
         * @enum {string}
         */
        FrontKind: "direct" | "adapted";
        /** @description Answer of a probe. */
        Health: {
            /** @description `ok`, `ready`, `starting`, `draining` or `store_unavailable`. */
            status: string;
        };
        /** @description A backend with objects that pins keep from clients. */
        HoldingBackend: {
            tenant: string;
            backend: string;
            held: number;
        };
        /** @description A prompt, as operators write it. */
        HostedPromptDocument: {
            title?: string | null;
            description?: string | null;
            arguments?: components["schemas"]["PromptArgument"][];
            messages: components["schemas"]["PromptMessage"][];
        };
        HostedPromptList: {
            prompts: components["schemas"]["HostedPromptView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A prompt that the broker hosts. */
        HostedPromptView: {
            title?: string | null;
            description?: string | null;
            arguments?: components["schemas"]["PromptArgument"][];
            messages: components["schemas"]["PromptMessage"][];
        } & {
            name: string;
            /** @description `api`, or `config` for one of the configuration file. */
            source: string;
        };
        /** @description Streamable HTTP. */
        HttpTransport: {
            url: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            type: "http";
        };
        /** @description Identity provider whose users the authorization server of a backend trusts. */
        IdentityProvider: {
            issuer: string;
            /** @description Id of the broker at the provider. */
            client_id: string;
            client_secret?: string | null;
            /** @description Scopes of the sign-in. `openid` is always one of them. */
            scopes?: string[];
        };
        /**
         * @description Which version of a file is in force.
         * @enum {string}
         */
        IncludedFileState: "applied" | "outdated" | "refused";
        /** @description A file of `include.folder`. */
        IncludedFileView: {
            name: string;
            state: components["schemas"]["IncludedFileState"];
            /** @description Time at which the broker read this text of the file. */
            read_at: string;
            /** @description Faults of the file, one per line. */
            faults?: string[];
        };
        /** @description `introspection` as written. */
        IntrospectionEntry: {
            endpoint: string;
            client_id: string;
            client_secret?: string | null;
            client_secret_file?: string | null;
            client_key_file?: string | null;
            client_key_id?: string | null;
            auth?: string | null;
            ttl?: components["schemas"]["DurationText"];
        };
        /** @description Claims that access rules look at. */
        IssuerClaims: {
            /** @default null */
            groups: string | null;
        };
        /**
         * @description Comparison of issuers.
         * @enum {string}
         */
        IssuerComparison: "exact" | "pathless_slash";
        /** @description An authorization server whose tokens are accepted. */
        IssuerEntry: {
            /** @description Issuer exactly as in `iss`. */
            issuer: string;
            /** @description URL of the keys. Absent: the issuer's metadata names it. */
            jwks_url?: string | null;
            keys_max_age?: components["schemas"]["DurationText"];
            audiences?: string[] | null;
            algorithms?: string[] | null;
            require_typ?: string | null;
            /** @description Only in the configuration file. */
            tenant?: string | null;
            /** @description Only in the configuration file. */
            tenant_claim?: string | null;
            /** @description Only in the configuration file. */
            tenants?: string[] | null;
            principal_claim?: string | null;
            scopes?: string[] | null;
            claims?: components["schemas"]["IssuerClaims"] | null;
            exchange?: components["schemas"]["ExchangeEntry"] | null;
            sign_in?: components["schemas"]["SignInEntry"] | null;
            /** @description Only in the configuration file. */
            check?: string | null;
            introspection?: components["schemas"]["IntrospectionEntry"] | null;
            preset?: components["schemas"]["Preset"] | null;
            front?: components["schemas"]["FrontKind"] | null;
            metadata_set?: {
                [key: string]: unknown;
            } | null;
            resource?: components["schemas"]["ResourceParameter"] | null;
            registration?: components["schemas"]["RegistrationEntry"] | null;
            scopes_append?: string[] | null;
            scope_prefix?: string | null;
            prompt?: components["schemas"]["PromptRule"] | null;
            admin?: components["schemas"]["OperatorMappingEntry"] | null;
        };
        IssuerList: {
            issuers: components["schemas"]["IssuerView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description An issuer of a tenant. */
        IssuerView: {
            /** @description Absent for an issuer of the configuration file. */
            name?: string | null;
            /** @description Issuer exactly as in `iss`. */
            issuer: string;
            /** @description Authorization server that clients use: the issuer, or the broker in front of it. */
            authorization_server: string;
            /** @description Settings as stored, without secrets. Absent for an issuer of the configuration file. */
            settings?: Record<string, never> | null;
            /** @description True if the secret of a client is stored. A `PUT` without it removes it. */
            secret: boolean;
            /**
             * @description False if another entry with the same URL is in force instead. The configuration file has
             *     precedence.
             */
            in_force: boolean;
            /** @description Number of keys that this replica can verify tokens with. */
            keys: number;
            /** @description Why the entry is not in force, or why this replica cannot stand in front of the issuer. */
            fault?: string | null;
            /** @description `api`, or `config` for an issuer of the configuration file, which can only be changed there. */
            source: string;
            created_at?: string | null;
            updated_at?: string | null;
        };
        KeyList: {
            keys: components["schemas"]["KeyView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description Settings of a new key. */
        KeyRequest: {
            /** @description Name of the key, chosen by its owner. */
            name?: string | null;
            /** @description Principal of the key. Several keys may have the same principal. Absent: the key's own id. */
            principal?: string | null;
            /** @description Groups that access rules look at. */
            groups?: string[] | null;
            /** @description Scopes that access rules look at. */
            scopes?: string[] | null;
            /** @description Labels for operators. */
            labels?: {
                [key: string]: string;
            } | null;
            /** @description Time until the key expires, such as `30d`: `1s` to 3650 days. Absent: never. */
            expires_in?: components["schemas"]["DurationText"];
        };
        /** @description A key that was just created. */
        KeyShown: {
            id: string;
            /** @description Principal of the key. */
            principal: string;
            name: string;
            groups?: string[];
            scopes?: string[];
            labels?: {
                [key: string]: string;
            };
            /** @description Absent: the key does not expire. */
            expires_at?: string | null;
            created_at: string;
        } & {
            /** @description The key itself. Only this answer contains it. */
            key: string;
        };
        /** @description An API key, without its secret text. */
        KeyView: {
            id: string;
            /** @description Principal of the key. */
            principal: string;
            name: string;
            groups?: string[];
            scopes?: string[];
            labels?: {
                [key: string]: string;
            };
            /** @description Absent: the key does not expire. */
            expires_at?: string | null;
            created_at: string;
        };
        /**
         * @description Sharing of links to a backend.
         * @enum {string}
         */
        LinkSharing: "auto" | "shared" | "per-session";
        /** @description The log filter of the replica that answers. */
        LogFilterView: {
            /** @description The filter in force. */
            filter: string;
            /** @description The filter of the configuration (`telemetry.log`). */
            configured: string;
            /**
             * Format: int64
             * @description Seconds until the configured filter is in force again; absent: it is in force.
             */
            remaining_seconds?: number | null;
            /** @description The replica that answers. */
            node: string;
        };
        MisfitView: {
            /**
             * Format: int64
             * @description Number of the record. Absent if the chain has no such record.
             */
            number?: number | null;
            detail: string;
        };
        /**
         * @description Form of names without an alias.
         * @enum {string}
         */
        NameStyle: "always" | "unique" | "never";
        /** @description A log filter, as an operator asks for it. */
        NewLogFilter: {
            /**
             * @description A level (`error`, `warn`, `info`, `debug`, `trace`, `off`), or directives such as
             *     `info,broker::backends=debug`.
             */
            filter: string;
            /** @description Time until the configured filter is in force again, from `1s` to `24h`. By default `10m`. */
            for?: components["schemas"]["DurationText"];
        };
        /** @description Settings of a new operator. */
        NewOperator: {
            /** @description Name in the audit log. No two operators have the same name. */
            name: string;
            /** @description `viewer`, `operator`, `tenant_admin`, `auditor`, `admin`, `backend_owner` or `scraper`. */
            role: string;
            /** @description Tenants that the operator sees. Absent: all tenants, and the broker itself. */
            tenants?: string[] | null;
            /** @description Backends of a `backend_owner`, as `TENANT/BACKEND`. */
            backends?: string[] | null;
        };
        /** @description Tokens to revoke: those of a principal, or one token. One of the two is given. */
        NewRevocation: {
            /** @description Principal as sessions show it: `ISSUER SUB` for tokens. */
            principal?: string | null;
            /** @description Id of the token, its claim `jti`. */
            jti?: string | null;
            /**
             * @description Time until which revoked tokens of the principal were issued, such as
             *     2026-01-31T12:00:00Z. Absent: now.
             */
            issued_before?: string | null;
        };
        NodeList: {
            nodes: components["schemas"]["NodeView"][];
        };
        /** @description A replica. */
        NodeView: {
            /** @description `node.id`, with a part that changes at every start and at every lost lease. */
            node: string;
            /** @description Address for other replicas. */
            address?: string | null;
            /** @description True if the replica drains and accepts no new work. */
            draining: boolean;
            /**
             * Format: int64
             * @description Remaining time of its lease, in milliseconds. Absent for a broker without replicas.
             */
            lease_ms?: number | null;
            /** @description True for the replica that answers. */
            is_this: boolean;
        };
        /**
         * @description Objects of a rule. `tools`, `prompts` and `resources` are alternatives; the other members
         *     narrow them. An absent member matches every object.
         */
        ObjectSelector: {
            /** @default null */
            backends: string[] | null;
            /**
             * @description `BACKEND/NAME`, by the backend's own names; `*` stands for any text.
             * @default null
             */
            tools: string[] | null;
            /** @default null */
            prompts: string[] | null;
            /**
             * @description `BACKEND/URI`, by the backend's own URIs.
             * @default null
             */
            resources: string[] | null;
            /** @default null */
            methods: string[] | null;
            /**
             * @description Classes of tools.
             * @default null
             */
            classes: components["schemas"]["ToolClass"][] | null;
        };
        OperatorGrantEntry: {
            value: string;
            role: string;
            /** @description Absent: all tenants. */
            tenants?: string[] | null;
            /** @description Only for the role `backend_owner`, as `TENANT/BACKEND`. */
            backends?: string[] | null;
        };
        OperatorList: {
            operators: components["schemas"]["OperatorView"][];
        };
        /** @description `admin.login` as written. */
        OperatorLoginEntry: {
            client_id: string;
            /** @description Absent, with `client_secret_file`: a public client. */
            client_secret?: string | null;
            client_secret_file?: string | null;
            /** @description Scopes that the console asks for. */
            scopes?: string[] | null;
            /** @description Last part of a redirect URI of this issuer alone. */
            callback?: string | null;
        };
        /** @description Operators among the principals of an issuer, as written. */
        OperatorMappingEntry: {
            /** @description Claim whose values `map` names, such as `groups`. */
            claim: string;
            /** @description Values of the claim and their roles. The first one that the token has decides. */
            map: components["schemas"]["OperatorGrantEntry"][];
            /** @description Audiences of tokens for the admin API. Absent: `auth.resource` with `/admin/v1`. */
            audiences?: string[] | null;
            login?: components["schemas"]["OperatorLoginEntry"] | null;
        };
        /** @description An operator that was just created. */
        OperatorShown: {
            /** @description `config/NAME` for an operator of the configuration file. */
            id: string;
            name: string;
            /** @description `unreadable` if this build cannot read the settings of the operator. */
            role: string;
            /** @description Absent: all tenants. */
            tenants?: string[] | null;
            /** @description Only of a `backend_owner`, as `TENANT/BACKEND`. */
            backends?: string[] | null;
            /** @description `config` for an operator of the configuration file, else `api`. */
            source: string;
            created_at?: string | null;
            /** @description Why the broker refuses the token of the operator, and the remedy. */
            fault?: string | null;
        } & {
            /** @description The token. Only this answer contains it. */
            token: string;
        };
        /** @description An operator, without its token. */
        OperatorView: {
            /** @description `config/NAME` for an operator of the configuration file. */
            id: string;
            name: string;
            /** @description `unreadable` if this build cannot read the settings of the operator. */
            role: string;
            /** @description Absent: all tenants. */
            tenants?: string[] | null;
            /** @description Only of a `backend_owner`, as `TENANT/BACKEND`. */
            backends?: string[] | null;
            /** @description `config` for an operator of the configuration file, else `api`. */
            source: string;
            created_at?: string | null;
            /** @description Why the broker refuses the token of the operator, and the remedy. */
            fault?: string | null;
        };
        /** @description State of the broker at one glance, for the tenants and backends that the operator sees. */
        OverviewView: {
            version: string;
            /** @description Name of the replica that answers. All numbers are its own. */
            replica: string;
            /** @description `ready`, `starting`, `draining` or `store_unavailable`. */
            readiness: string;
            /** Format: int64 */
            uptime_seconds: number;
            /** @description Address of the broker for clients, if it is known. */
            address?: string | null;
            tenants: number;
            /** @description Backends by state. */
            backends: {
                [key: string]: number;
            };
            /** @description Circuit breakers by state. */
            breakers: {
                [key: string]: number;
            };
            tools: number;
            prompts: number;
            resources: number;
            /** @description Sessions that live in this replica. */
            sessions: number;
            calls_in_flight: number;
            /** @description Calls that wait for capacity at a backend. */
            calls_queued: number;
            /** @description Tools, prompts, resources and templates that pins keep from clients. */
            held: number;
            /** @description Objects that pins keep from clients, by backend. At most 20. */
            holding: components["schemas"]["HoldingBackend"][];
            waiting?: components["schemas"]["WaitingView"] | null;
            /** @description Backends that are not ready, or whose breaker is not closed. At most 20. */
            troubled: components["schemas"]["TroubledBackend"][];
        };
        PinApprovalItem: {
            kind: string;
            name: string;
            /** @description Hash of the definition that the operator looked at. */
            hash: string;
        };
        /** @description Definitions to approve. */
        PinApprovalRequest: {
            items?: components["schemas"]["PinApprovalItem"][];
            /**
             * @description True for everything that is listed now and not blocked. Pins of objects that are gone, and
             *     about which no operator decided, are removed.
             */
            all?: boolean;
        };
        PinBlockItem: {
            kind: string;
            name: string;
        };
        /** @description Objects to block. */
        PinBlockRequest: {
            items: components["schemas"]["PinBlockItem"][];
        };
        /** @description The difference between the accepted definition of an object and the one that was seen last. */
        PinDiffView: {
            kind: string;
            name: string;
            state: string;
            hash: string;
            changes: components["schemas"]["DefinitionChange"][];
            findings: components["schemas"]["Finding"][];
            /** @description The definition that was seen last, as JSON text with names for invisible characters. */
            definition: string;
        };
        PinList: {
            /** @description What the broker does with objects that no operator approved. */
            mode: components["schemas"]["PinMode"];
            pins: components["schemas"]["PinView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /**
         * @description What the broker does with objects that no operator approved.
         * @enum {string}
         */
        PinMode: "off" | "observe" | "hold_changed" | "hold_all";
        /** @description Settings of pins. */
        PinRules: {
            mode?: components["schemas"]["PinMode"];
            /**
             * @description Members that change without a reason for a look, as JSON pointers, by the pattern of
             *     `KIND/NAME`, such as `tool/now`.
             */
            ignore?: {
                [key: string]: string[];
            };
            /** @description What happens to hidden characters in the results of tools. */
            results?: components["schemas"]["ResultScan"];
        };
        /** @description Pins of a backend: a mode, or settings. */
        PinSettings: components["schemas"]["PinMode"] | components["schemas"]["PinRules"];
        /** @description A pinned object of a backend. */
        PinView: {
            /** @description `tool`, `prompt`, `resource`, `template`, `instructions`, `command` or `app`. */
            kind: string;
            /** @description The backend's own name, URI or URI template. */
            name: string;
            /** @description `trusted`, `pending`, `changed`, `blocked` or `gone`. */
            state: string;
            /** @description Hash of the definition that was seen last. */
            hash: string;
            /** @description Hashes that operators approved, the newest first. */
            approved: string[];
            /** @description Hash of the first definition. */
            first: string;
            /** @description True if clients neither see nor use the object. */
            held: boolean;
            findings: components["schemas"]["Finding"][];
            /** @description Operator of the last decision. */
            decided_by?: string | null;
            decided_at?: string | null;
            first_seen_at: string;
            /** @description Time of the last change that was seen. */
            seen_at: string;
        };
        /** @description A use of an object that a check decides about. */
        PolicyCheck: {
            as?: components["schemas"]["TestSubject"];
            /** @description A method that uses an object, such as `tools/call`. */
            method: string;
            /** @description `BACKEND/NAME` or `BACKEND/URI`, by the backend's own name. */
            object: string;
        };
        /** @description The decision of a policy, and why. */
        PolicyCheckView: {
            verdict: components["schemas"]["Verdict"];
            /**
             * @description `rule`, `default` (no rule applies), `shadow` (the whole policy is in shadow mode, and permits
             *     everything) or `no_policy` (the tenant has none, which permits everything).
             */
            decided_by: string;
            /** @description Id of the deciding rule. */
            rule?: string | null;
            /** @description Scopes that the subject needs. Only for a challenge. */
            required_scopes?: string[];
            shadow_verdict?: components["schemas"]["Verdict"] | null;
            /** @description Number of listed objects that the policy hides from the subject. */
            hidden: number;
            /** @description Every rule, in order. */
            considered: components["schemas"]["ConsideredRule"][];
            /** @description Reason why the object cannot be used, whatever the verdict is. */
            note?: string | null;
        };
        /** @description The decisions of one rule. */
        PolicyDecisionView: {
            /** @description Id of the rule; absent: the default decided. */
            rule?: string | null;
            verdict: components["schemas"]["Verdict"];
            /** @description `enforce`, or `shadow` for a verdict that would follow from rules in shadow mode. */
            mode: string;
            /** Format: int64 */
            count: number;
            last_at: string;
            /** @description Up to five principals. */
            principals: string[];
            /** @description Up to five objects, as `BACKEND/NAME`. */
            objects: string[];
        };
        /** @description Who may do what in a tenant. */
        PolicyDocument: {
            /**
             * @description Decision about an object that no rule decides.
             * @default allow
             */
            default: components["schemas"]["RuleEffect"];
            /**
             * @description `shadow`: the whole policy only counts and logs its decisions.
             * @default enforce
             */
            mode: components["schemas"]["RuleMode"];
            /**
             * @description Name the deciding rule in the error of a challenge.
             * @default false
             */
            explain_to_callers: boolean;
            /** @default [] */
            rules: components["schemas"]["PolicyRule"][];
            /**
             * @description Decisions that must hold. A document whose test fails is refused.
             * @default []
             */
            tests: components["schemas"]["PolicyTest"][];
        };
        /** @description What a policy decided at one replica. */
        PolicyReportView: {
            /** @description Name of the replica that answers. The decisions are its own, since its start. */
            replica: string;
            since: string;
            /** @description Decisions other than a plain allow, the most frequent first. */
            decisions: components["schemas"]["PolicyDecisionView"][];
        };
        /** @description One rule. An enforced deny wins over every allow and approve. */
        PolicyRule: {
            /** @description Name of the rule, unique in the policy: letters, digits, `-`, `_` and `.`, at most 64. */
            id: string;
            effect: components["schemas"]["RuleEffect"];
            subjects?: components["schemas"]["SubjectSelector"];
            objects?: components["schemas"]["ObjectSelector"];
            mode?: components["schemas"]["RuleMode"];
            /** @description Scopes that lift a deny. A subject without one of them gets a challenge that names them. */
            required_scopes?: string[];
            /** @description Text for operators. */
            reason?: string | null;
            by?: components["schemas"]["Approvers"] | null;
            /** @description Time for the decision, and again for the use of it: `30s`, `10m` or `2h`. Absent: `1h`. */
            ttl?: string | null;
            /** @description Whether another person than the caller must approve. Absent: yes. */
            four_eyes?: boolean | null;
        };
        /** @description A decision that the policy must make. */
        PolicyTest: {
            as: components["schemas"]["TestSubject"];
            /** @description A method that uses an object, such as `tools/call`. */
            method: string;
            /** @description `BACKEND/NAME` or `BACKEND/URI`. */
            object: string;
            annotations?: components["schemas"]["TestAnnotations"] | null;
            expect: components["schemas"]["Verdict"];
        };
        /** @description A stored policy. */
        PolicyView: {
            /**
             * @description Decision about an object that no rule decides.
             * @default allow
             */
            default: components["schemas"]["RuleEffect"];
            /**
             * @description `shadow`: the whole policy only counts and logs its decisions.
             * @default enforce
             */
            mode: components["schemas"]["RuleMode"];
            /**
             * @description Name the deciding rule in the error of a challenge.
             * @default false
             */
            explain_to_callers: boolean;
            /** @default [] */
            rules: components["schemas"]["PolicyRule"][];
            /**
             * @description Decisions that must hold. A document whose test fails is refused.
             * @default []
             */
            tests: components["schemas"]["PolicyTest"][];
        } & {
            /** @description Members whose effect may not be the intended one. Only in the answer to a change. */
            warnings?: components["schemas"]["PolicyWarningView"][];
        };
        /** @description A member of a policy that has no effect at present, or not the one that it seems to have. */
        PolicyWarningView: {
            field: string;
            detail: string;
        };
        /**
         * @description The product behind an issuer.
         * @enum {string}
         */
        Preset: "entra" | "okta" | "auth0" | "keycloak" | "authentik" | "google";
        /** @description Reason why a request was refused. */
        Problem: {
            /** @description Stable name of a kind of problem: `urn:mcp-broker:problem:…`. */
            type: string;
            title: string;
            /** Format: int32 */
            status: number;
            detail: string;
            /** @description The first field at fault: a path into the body, a path parameter, a query parameter or a header. */
            field?: string | null;
            /** @description All fields at fault, if there are several. */
            faults?: components["schemas"]["FieldFault"][];
        };
        /** @description An argument of a hosted prompt. */
        PromptArgument: {
            /** @description Letters, digits, `-` and `_`, at most 64. */
            name: string;
            description?: string | null;
            /** @description Whether the prompt needs it. An optional argument that is absent is an empty text. */
            required?: boolean;
            /** @description The values that it may have, and that completions offer. Empty: any text. */
            values?: string[];
        };
        /** @description A message of a hosted prompt. */
        PromptMessage: {
            role?: components["schemas"]["PromptRole"];
            /** @description Text with placeholders such as `{{argument}}`. */
            text: string;
        };
        /**
         * @description Who says a message.
         * @enum {string}
         */
        PromptRole: "user" | "assistant";
        /**
         * @description The parameter `prompt` of an authorization request.
         * @enum {string}
         */
        PromptRule: "pass" | "drop";
        /**
         * @description Protocol revisions that the broker uses with a backend.
         * @enum {string}
         */
        ProtocolChoice: "auto" | "legacy" | "modern";
        /** @description QUIC, which always uses TLS, with the binding in docs/transports.md. */
        QuicTransport: {
            /** @description `HOST:PORT` */
            address: string;
            /** @description Name that the certificate must have. Absent: the host of the address. */
            server_name?: string | null;
            /** @description True if each request has a stream of its own. Absent: the backend's handshake decides. */
            streams?: boolean | null;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            type: "quic";
        };
        /** @description Rate of one tool. */
        RateSpec: {
            /**
             * Format: int32
             * @default null
             */
            requests_per_second: number | null;
            /**
             * Format: int32
             * @default null
             */
            burst: number | null;
        };
        RefusedReload: {
            at: string;
            /** @description Faults of the file, one per line. */
            faults: string[];
        };
        /** @description The client that is registered at the issuer by hand. */
        RegistrationEntry: {
            client_id: string;
            redirect_uris: string[];
            /** @description Secret of a confidential client. */
            secret?: string | null;
            /** @description File with the secret. Only in the configuration file. */
            secret_file?: string | null;
        };
        /**
         * @description How the broker treats the parameter `resource` (RFC 8707) in requests to the issuer.
         * @enum {string}
         */
        ResourceParameter: "pass" | "strip" | "audience";
        /** @description Resources of the backend that clients may name. */
        ResourceRules: {
            /**
             * @description URIs below which the resources are; requests for others are refused. A client's URI must
             *     begin exactly like the root. Empty: any.
             * @default []
             * @example [
             *       "file:///srv/files"
             *     ]
             */
            roots: string[];
        };
        /**
         * @description What the broker does with hidden characters in the results of tools.
         * @enum {string}
         */
        ResultScan: "off" | "flag" | "strip";
        RevocationList: {
            revocations: components["schemas"]["RevocationView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A revocation in force. */
        RevocationView: {
            /** @description Name of the revocation in the admin API. */
            id: string;
            principal?: string | null;
            jti?: string | null;
            /** @description Tokens of the principal that were issued until then are refused. Absent for one token. */
            issued_before?: string | null;
            created_at: string;
        };
        /**
         * @description Whose roots a backend gets.
         * @enum {string}
         */
        RootMode: "client" | "configured" | "merge";
        /** @description The answer to a backend that asks for roots. */
        RootRules: {
            /**
             * @description The operator's roots, in the order in which the backend gets them.
             * @default []
             */
            list: components["schemas"]["ConfiguredRoot"][];
            /** @default client */
            mode: components["schemas"]["RootMode"];
        };
        /**
         * @description The effect of a rule.
         * @enum {string}
         */
        RuleEffect: "allow" | "deny" | "approve";
        /**
         * @description Whether a rule takes effect.
         * @enum {string}
         */
        RuleMode: "enforce" | "shadow";
        /** @description Access of one backend's children, in addition to the default. */
        SandboxRules: {
            /**
             * @description Files and folders that may be read and executed.
             * @default []
             * @example [
             *       "/srv/reference"
             *     ]
             */
            read: string[];
            /**
             * @description Files and folders that may be changed too.
             * @default []
             * @example [
             *       "/srv/files"
             *     ]
             */
            write: string[];
            /**
             * @description True if sockets of the internet protocols may be opened.
             * @default true
             */
            network: boolean;
        };
        SessionList: {
            sessions: components["schemas"]["SessionView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A client session. */
        SessionView: {
            /** @description Digest of the session id, because the id itself is a secret of its client. */
            id: string;
            tenant: string;
            principal: string;
            transport: string;
            /** @description `aggregated`, or the name of the only backend. */
            endpoint: string;
            protocol_version: string;
            client_name: string;
            client_version: string;
            /**
             * @description `handshake`, `ready` or `closing`; `parked` while no replica owns the session, until its
             *     client sends a request.
             */
            state: string;
            /** @description Known only for sessions of the replica that answers. */
            calls_in_flight?: number | null;
            /** @description Known only for sessions of the replica that answers. */
            streams?: number | null;
            subscriptions: number;
            /** Format: int64 */
            idle_seconds: number;
            created_at: string;
            /** @description Replica that owns the session. */
            node?: string | null;
        };
        /** @description Source of a setting. */
        SettingSource: {
            kind: components["schemas"]["SettingSourceKind"];
            /** @description Name of the environment variable, or of the file of `include.folder`. */
            name?: string | null;
        };
        /**
         * @description Kind of the source of a setting.
         * @enum {string}
         */
        SettingSourceKind: "file" | "environment" | "included_file";
        /** @description `sign_in` as written. */
        SignInEntry: {
            client_id: string;
            client_secret?: string | null;
            client_secret_file?: string | null;
            /** @description Last part of a redirect URI of this issuer alone. */
            callback?: string | null;
        };
        /** @description The operator who asks, and what it may do. */
        SignedInView: {
            name: string;
            role: string;
            /** @description Absent: all tenants, and the broker itself. */
            tenants?: string[] | null;
            /** @description Only of a `backend_owner`, as `TENANT/BACKEND`. */
            backends?: string[] | null;
            /** @description Permissions, as `x-permission` names them. */
            permissions: string[];
        };
        SizeText: number | string;
        /** @description HTTP+SSE of 2024-11-05. The broker also detects it behind `http`. */
        SseTransport: {
            /** @description URL of the event stream */
            url: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            type: "sse";
        };
        StatusList: {
            backends: components["schemas"]["BackendStatus"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description Limits of one backend's child processes. An absent one has the configuration's default. */
        StdioLimits: {
            /** @default null */
            memory: components["schemas"]["SizeText"] | null;
            /**
             * Format: int32
             * @description Processes and threads of the children's user, all together. Does not apply to root.
             * @default null
             */
            processes: number | null;
            /**
             * Format: int32
             * @description Open descriptors of each process.
             * @default null
             */
            open_files: number | null;
            /**
             * @description Processor time of each process.
             * @default null
             */
            cpu: components["schemas"]["DurationText"];
            /**
             * @description Time without a request after which a child is ended. The next request starts another.
             * @default null
             */
            idle: components["schemas"]["DurationText"];
            /**
             * @description Age at which a child is ended as soon as no request waits for it. The next request starts
             *     another.
             * @default null
             */
            lifetime: components["schemas"]["DurationText"];
        };
        /** @description A child process that speaks newline-delimited JSON on its standard streams. */
        StdioTransport: {
            command: string;
            args?: string[];
            env?: {
                [key: string]: string;
            };
            cwd?: string | null;
            limits?: components["schemas"]["StdioLimits"];
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            type: "stdio";
        };
        /**
         * @description Subjects of a rule. Every given member must match, by one of its values. An absent member
         *     matches every subject.
         */
        SubjectSelector: {
            /**
             * @description Principals as sessions show them; `*` stands for any text.
             * @default null
             */
            principals: string[] | null;
            /** @default null */
            groups: string[] | null;
            /** @default null */
            scopes: string[] | null;
            /**
             * @description Ids of API keys.
             * @default null
             */
            keys: string[] | null;
            /**
             * @description OAuth clients, by `azp` or `client_id`.
             * @default null
             */
            clients: string[] | null;
        };
        SubscriptionList: {
            subscriptions: components["schemas"]["SubscriptionView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A resource with subscribers. */
        SubscriptionView: {
            tenant: string;
            backend: string;
            uri: string;
            /** @description Number of sessions that are subscribed to it. */
            sessions: number;
        };
        /** @enum {string} */
        TargetState: "open" | "closed";
        /** @description A change of a task's status. */
        TaskChange: {
            to: string;
            at: string;
            /**
             * Format: int64
             * @description Number of replicas that had owned the task by then. Absent for a change without ownership,
             *     such as a cancellation.
             */
            epoch?: number | null;
        };
        TaskList: {
            tasks: components["schemas"]["TaskView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A task with its history. */
        TaskShown: {
            /** @description Digest of the task's id, as in the log. The id is a secret of its client. */
            id: string;
            tenant: string;
            principal: string;
            backend: string;
            status: string;
            created_at: string;
            /** @description Message about the status. */
            message?: string | null;
            /** @description Session that created the task. */
            session?: string | null;
            /** @description Time of the latest status change. */
            updated_at?: string | null;
            /** @description Time at which the task is deleted. */
            expires_at?: string | null;
        } & {
            /** @description Status changes, oldest first. */
            history: components["schemas"]["TaskChange"][];
        };
        /** @description A task. */
        TaskView: {
            /** @description Digest of the task's id, as in the log. The id is a secret of its client. */
            id: string;
            tenant: string;
            principal: string;
            backend: string;
            status: string;
            created_at: string;
            /** @description Message about the status. */
            message?: string | null;
            /** @description Session that created the task. */
            session?: string | null;
            /** @description Time of the latest status change. */
            updated_at?: string | null;
            /** @description Time at which the task is deleted. */
            expires_at?: string | null;
        };
        /** @description TLS of a TCP backend: false, true or settings. The certificate is always verified. */
        TcpTls: boolean | components["schemas"]["TlsSettings"];
        /** @description TCP with newline-delimited JSON. */
        TcpTransport: {
            /** @description `HOST:PORT` */
            address: string;
            tls?: components["schemas"]["TcpTls"] | null;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            type: "tcp";
        };
        /** @description Limits of one tenant. An absent one has the configuration's default. */
        TenantLimits: {
            /**
             * Format: int32
             * @default null
             */
            requests_per_second: number | null;
            /**
             * Format: int32
             * @default null
             */
            burst: number | null;
            /**
             * Format: int32
             * @default null
             */
            requests_per_second_per_principal: number | null;
            /**
             * Format: int32
             * @default null
             */
            burst_per_principal: number | null;
            /**
             * Format: int32
             * @default null
             */
            requests_per_second_per_backend: number | null;
            /**
             * Format: int32
             * @default null
             */
            burst_per_backend: number | null;
            /**
             * Format: int32
             * @default null
             */
            requests_per_second_per_tool: number | null;
            /**
             * Format: int32
             * @default null
             */
            burst_per_tool: number | null;
            /** @default null */
            connections_per_tenant: number | null;
            /** @default null */
            sessions_per_tenant: number | null;
            /** @default null */
            sessions_per_principal: number | null;
            /** @default null */
            calls_in_flight_per_tenant: number | null;
            /**
             * @description Name of the profile for the message sizes of its clients.
             * @default null
             */
            message_profile: string | null;
        };
        TenantList: {
            tenants: components["schemas"]["TenantView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description A tenant: its switch, its weight and its own limits. */
        TenantSpec: {
            /**
             * @description If false, the tenant's requests are refused as if its keys did not exist.
             * @default true
             */
            enabled: boolean;
            /**
             * Format: int32
             * @description Share of a busy broker relative to other tenants, 1 to 1000.
             * @default 1
             */
            weight: number;
            /** @default {} */
            limits: components["schemas"]["TenantLimits"];
            /** @default {} */
            timeouts: components["schemas"]["TenantTimeouts"];
        };
        /**
         * @description Deadlines of one tenant's requests. An absent one has the configuration's default. Those of a
         *     backend have precedence.
         */
        TenantTimeouts: {
            /** @default null */
            call: components["schemas"]["DurationText"];
            /** @default null */
            control: components["schemas"]["DurationText"];
            /** @default null */
            call_max: components["schemas"]["DurationText"];
            /**
             * @description Deadlines by method. They have precedence over `call` and `control`.
             * @default {}
             */
            methods: {
                [key: string]: components["schemas"]["DurationText"];
            };
        };
        /** @description A tenant as it is in force. */
        TenantView: {
            tenant: string;
            enabled: boolean;
            /** Format: int32 */
            weight: number;
            limits: components["schemas"]["TenantLimits"];
            timeouts?: components["schemas"]["TenantTimeouts"];
            /** @description `api`, or `config` for a tenant of the configuration file, which can only be changed there. */
            source: string;
            created_at?: string | null;
            updated_at?: string | null;
        };
        /** @description The annotations of a tool that a test makes up. An absent hint counts as its worse value. */
        TestAnnotations: {
            /** @default null */
            readOnlyHint: boolean | null;
            /** @default null */
            destructiveHint: boolean | null;
            /** @default null */
            openWorldHint: boolean | null;
        };
        /** @description A subject that a test or a check makes up. */
        TestSubject: {
            /** @default null */
            principal: string | null;
            /** @default null */
            key: string | null;
            /** @default [] */
            groups: string[];
            /** @default [] */
            scopes: string[];
            /** @default null */
            client: string | null;
        };
        TlsSettings: {
            /** @description Name that the certificate must have. Absent: the host of the address. */
            server_name?: string | null;
        };
        /**
         * @description Classes of tools by their annotations. A missing hint counts as its worse value.
         * @enum {string}
         */
        ToolClass: "read" | "write" | "destructive" | "open_world";
        /** @description What one tool costs. */
        ToolCostView: {
            /** @description The name that clients see. */
            name: string;
            /** @description `BACKEND/NAME`; absent for a tool of the broker. */
            object?: string | null;
            /** Format: int64 */
            bytes: number;
            /** Format: int64 */
            tokens: number;
        };
        /** @description Checks of calls of the backend's tools. */
        ToolRules: {
            /**
             * @description Refuse arguments that do not match the tool's inputSchema, without sending the call.
             * @default false
             */
            validate_arguments: boolean;
            /**
             * @description Time limit of that check, including the wait for a thread, 1ms to 10s. Arguments that take
             *     longer are refused. Absent: 100ms.
             * @default null
             */
            validate_timeout: components["schemas"]["DurationText"];
        };
        /** @description A bundle of tools, prompts and resources with an endpoint of its own. */
        ToolsetDocument: {
            /**
             * @description Text that clients get first among the instructions of the endpoint.
             * @default null
             */
            description: string | null;
            /**
             * @description What the toolset holds. Empty: nothing.
             * @default {}
             */
            include: components["schemas"]["CatalogSelector"];
            /**
             * @description What it does not hold, even if it is included.
             * @default {}
             */
            exclude: components["schemas"]["CatalogSelector"];
            /**
             * @description Names that clients see, by `BACKEND/NAME`: letters, digits, `-` and `_`, without `__`, at
             *     most 64.
             * @default {}
             */
            aliases: {
                [key: string]: string;
            };
            /**
             * @description Changed entries, by `BACKEND/NAME`.
             * @default {}
             */
            overrides: {
                [key: string]: components["schemas"]["EntryOverride"];
            };
            /**
             * @description Form of the names without an alias.
             * @default always
             */
            names: components["schemas"]["NameStyle"];
            /**
             * @description How much of the descriptions of tools clients get.
             * @default full
             */
            descriptions: components["schemas"]["DescriptionLength"];
            /**
             * Format: int32
             * @description Longest description of a tool, in characters. Absent: any.
             * @default null
             */
            description_chars_max: number | null;
            /**
             * @description List the `outputSchema` of tools.
             * @default true
             */
            output_schemas: boolean;
            /**
             * Format: int32
             * @description Estimated tokens of the result of a tool at most. Longer ones are shortened, and read in pages.
             *     Absent: any.
             * @default null
             */
            max_result_tokens: number | null;
            /**
             * @description List five tools that find and call the others, instead of the others.
             * @default false
             */
            search: boolean;
            /**
             * @description Whether the endpoint exists.
             * @default false
             */
            published: boolean;
            /**
             * @description Hold the bound callers to the toolset at every endpoint.
             * @default false
             */
            enforce: boolean;
            /** @default null */
            bind: components["schemas"]["SubjectSelector"] | null;
        };
        ToolsetList: {
            toolsets: components["schemas"]["ToolsetView"][];
            /** @description Value of `after` for the next page; absent on the last page. */
            next?: string | null;
        };
        /** @description What a toolset lists. */
        ToolsetLists: {
            tools: number;
            prompts: number;
            resources: number;
            resource_templates: number;
            /** @description Text that changes with the lists. It is the same on every replica that sees the same lists. */
            catalog_version: string;
            /**
             * Format: int64
             * @description Estimated tokens of all tools, as a model gets them.
             */
            tokens: number;
        };
        /** @description A toolset, and what it holds at present. */
        ToolsetView: {
            /**
             * @description Text that clients get first among the instructions of the endpoint.
             * @default null
             */
            description: string | null;
            /**
             * @description What the toolset holds. Empty: nothing.
             * @default {}
             */
            include: components["schemas"]["CatalogSelector"];
            /**
             * @description What it does not hold, even if it is included.
             * @default {}
             */
            exclude: components["schemas"]["CatalogSelector"];
            /**
             * @description Names that clients see, by `BACKEND/NAME`: letters, digits, `-` and `_`, without `__`, at
             *     most 64.
             * @default {}
             */
            aliases: {
                [key: string]: string;
            };
            /**
             * @description Changed entries, by `BACKEND/NAME`.
             * @default {}
             */
            overrides: {
                [key: string]: components["schemas"]["EntryOverride"];
            };
            /**
             * @description Form of the names without an alias.
             * @default always
             */
            names: components["schemas"]["NameStyle"];
            /**
             * @description How much of the descriptions of tools clients get.
             * @default full
             */
            descriptions: components["schemas"]["DescriptionLength"];
            /**
             * Format: int32
             * @description Longest description of a tool, in characters. Absent: any.
             * @default null
             */
            description_chars_max: number | null;
            /**
             * @description List the `outputSchema` of tools.
             * @default true
             */
            output_schemas: boolean;
            /**
             * Format: int32
             * @description Estimated tokens of the result of a tool at most. Longer ones are shortened, and read in pages.
             *     Absent: any.
             * @default null
             */
            max_result_tokens: number | null;
            /**
             * @description List five tools that find and call the others, instead of the others.
             * @default false
             */
            search: boolean;
            /**
             * @description Whether the endpoint exists.
             * @default false
             */
            published: boolean;
            /**
             * @description Hold the bound callers to the toolset at every endpoint.
             * @default false
             */
            enforce: boolean;
            /** @default null */
            bind: components["schemas"]["SubjectSelector"] | null;
        } & {
            name: string;
            /** @description `api`, or `config` for one of the configuration file. */
            source: string;
            /** @description Path of the endpoint; absent if it is not published. */
            endpoint?: string | null;
            lists?: components["schemas"]["ToolsetLists"] | null;
            /**
             * @description Included patterns, aliases and overrides that match nothing at present. Only in the answer to
             *     a change.
             */
            warnings?: components["schemas"]["PolicyWarningView"][];
        };
        /** @description Transport of a backend. */
        TransportSpec: components["schemas"]["HttpTransport"] | components["schemas"]["SseTransport"] | components["schemas"]["TcpTransport"] | components["schemas"]["WebsocketTransport"] | components["schemas"]["QuicTransport"] | components["schemas"]["StdioTransport"];
        /** @description A backend that needs attention. */
        TroubledBackend: {
            tenant: string;
            backend: string;
            state: string;
            /** @description State of its breaker, if it is not closed. */
            breaker?: string | null;
            last_error?: string | null;
        };
        /**
         * @description The result of a decision.
         * @enum {string}
         */
        Verdict: "allow" | "deny" | "challenge" | "approve";
        /** @description The state of a backend's breaker on another replica. */
        VerdictView: {
            /** @description Name of the replica. */
            replica: string;
            /** @description `closed`, `half_open` or `open`. */
            state: string;
            /**
             * Format: int64
             * @description Time since this replica learned of it, in milliseconds.
             */
            age_ms: number;
        };
        /** @description What waits for a person in one tenant. */
        WaitingTenant: {
            tenant: string;
            /** Format: int64 */
            approvals: number;
            /** Format: int64 */
            reconnect: number;
            /** Format: int64 */
            ended: number;
        };
        /** @description What waits for a person. */
        WaitingView: {
            /**
             * Format: int64
             * @description Calls that wait for a decision.
             */
            approvals: number;
            /**
             * Format: int64
             * @description Accounts at backends whose people must connect again.
             */
            reconnect: number;
            /**
             * Format: int64
             * @description Connected accounts whose access token has ended. The next call renews it, or the person must
             *     connect again.
             */
            ended: number;
            /** @description Tenants with at least one of these. */
            tenants: components["schemas"]["WaitingTenant"][];
        };
        /** @description WebSocket with one message per text frame. */
        WebsocketTransport: {
            /** @description `ws://` or `wss://` */
            url: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            type: "websocket";
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    list_activity: {
        parameters: {
            query?: {
                /** @description Only this tenant. */
                tenant?: string;
                /** @description Number of the entry after which the list begins. */
                after?: number;
                /** @description Maximum number of entries; absent: 200. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActivityList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_audit_records: {
        parameters: {
            query?: {
                /** @description Only this tenant, even if it no longer exists. */
                tenant?: string;
                /** @description `admin` or `call`. */
                kind?: string;
                /** @description Start time: a time such as 2026-01-31T12:00:00Z, or an age such as 24h. */
                since?: string;
                /** @description End time (exclusive), in the format of `since`. */
                until?: string;
                /** @description `oldest` or `newest`: the records that come first; `oldest` by default. */
                order?: string;
                /** @description Number of the record after which the page begins, in this order. */
                after?: number;
                /** @description Maximum number of records on a page; absent: 100, and for an export 1000. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_audit_chains: {
        parameters: {
            query?: {
                /** @description `next` of the page before. */
                after?: string;
                /** @description Maximum number of chains on a page; absent: 500. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ChainList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    export_audit_records: {
        parameters: {
            query?: {
                /** @description Only this tenant, even if it no longer exists. */
                tenant?: string;
                /** @description `admin` or `call`. */
                kind?: string;
                /** @description Start time: a time such as 2026-01-31T12:00:00Z, or an age such as 24h. */
                since?: string;
                /** @description End time (exclusive), in the format of `since`. */
                until?: string;
                /** @description `oldest` or `newest`: the records that come first; `oldest` by default. */
                order?: string;
                /** @description Number of the record after which the page begins, in this order. */
                after?: number;
                /** @description Maximum number of records on a page; absent: 100, and for an export 1000. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A record per line */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": string;
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    verify_audit_chain: {
        parameters: {
            query?: {
                /** @description Tenant of the chain; absent: the chain of records without a tenant. */
                tenant?: string;
                /** @description `next` of the page before. */
                after?: string;
                /** @description Maximum number of records on a page; absent: 500. */
                limit?: number;
                /**
                 * @description A checkpoint of this chain from outside the database, as JSON. The chain must still match
                 *     it.
                 */
                checkpoint?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditVerdict"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_all_backends: {
        parameters: {
            query?: {
                /** @description Only this tenant. */
                tenant?: string;
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StatusList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_configuration: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConfigurationView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_effective_configuration: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EffectiveConfigurationView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    drain: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Accepted */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_log_filter: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LogFilterView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_log_filter: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewLogFilter"];
            };
        };
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LogFilterView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    reset_log_filter: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LogFilterView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_nodes: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    drain_node: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the replica, or its `node.id` */
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Accepted */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_openapi: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description OpenAPI 3.1 */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_signed_in_operator: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SignedInView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_operators: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OperatorList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    create_operator: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewOperator"];
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OperatorShown"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    revoke_operator: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_overview: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OverviewView"];
                };
            };
            /** @description Nothing has changed */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_sessions: {
        parameters: {
            query?: {
                /** @description Only this tenant. */
                tenant?: string;
                /** @description Maximum number of entries on a page; absent: 20000. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_session: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    end_session: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_subscriptions: {
        parameters: {
            query?: {
                /** @description Only this tenant. */
                tenant?: string;
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubscriptionList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_tasks: {
        parameters: {
            query?: {
                /** @description Only this tenant. */
                tenant?: string;
                /** @description Only tasks with this status. */
                status?: string;
                /** @description Maximum number of entries on a page; absent: 20000. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_task: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskShown"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    cancel_task: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_tenants: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_tenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_tenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TenantSpec"];
            };
        };
        responses: {
            /** @description Replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_tenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_approvals: {
        parameters: {
            query?: {
                /** @description Only approvals in this state: `pending`, `approved`, `denied`, `expired` or `used`. */
                state?: string;
                /** @description Maximum number of entries on a page; absent: 100. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ApprovalList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_approval: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ApprovalView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    decide_approval: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DecisionRequest"];
            };
        };
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ApprovalView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_backends: {
        parameters: {
            query?: {
                /** @description Only backends in this state, such as `failed`. */
                state?: string;
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BackendList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_backend: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BackendView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_backend: {
        parameters: {
            query?: {
                /** @description If true, the answer waits until the backend is connected or has failed. Default true. */
                wait?: boolean;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BackendSpec"];
            };
        };
        responses: {
            /** @description Replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BackendView"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BackendView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_backend: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    set_breaker: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BreakerWanted"];
            };
        };
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BackendView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_pins: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    approve_pins: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PinApprovalRequest"];
            };
        };
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    block_pins: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PinBlockRequest"];
            };
        };
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    diff_pin: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
                /** @example tool */
                kind: string;
                /** @description The backend's own name or URI, percent-encoded */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinDiffView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    probe_backend: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BackendView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    add_root: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ConfiguredRoot"];
            };
        };
        responses: {
            /** @description Renamed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RootRules"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RootRules"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_root: {
        parameters: {
            query: {
                /**
                 * @description URI of the root.
                 * @example file:///srv/projects
                 */
                uri: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_catalog: {
        parameters: {
            query?: {
                /** @description `tool`, `prompt`, `resource` or `template`. */
                kind?: string;
                /** @description Only entries of this backend. */
                backend?: string;
                /** @description Only entries with this name or URI at the backend. */
                name?: string;
                /** @description If true, entries show their definitions. Default false. */
                definitions?: boolean;
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CatalogList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_catalog_cost: {
        parameters: {
            query?: {
                /** @description A published toolset. Absent: all backends of the tenant. */
                toolset?: string;
                /** @description Number of tools to name, at most 1000. Absent: 20. */
                limit?: number;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CatalogCostView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_connections: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConnectionList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    create_connect_link: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ConnectLinkRequest"];
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConnectLinkView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    end_connection: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                principal: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    test_connection: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                principal: string;
                backend: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConnectionTestView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_issuers: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["IssuerList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_issuer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                issuer: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["IssuerView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_issuer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                issuer: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["IssuerEntry"];
            };
        };
        responses: {
            /** @description Replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["IssuerView"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["IssuerView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_issuer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                issuer: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_keys: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeyList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    create_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["KeyRequest"] | null;
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeyShown"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    revoke_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_policy: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_policy: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PolicyDocument"];
            };
        };
        responses: {
            /** @description Replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyView"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_policy: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    check_policy: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PolicyCheck"];
            };
        };
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyCheckView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    report_policy: {
        parameters: {
            query?: {
                /**
                 * @description Start time: a time such as 2026-01-31T12:00:00Z, or an age such as 1h. Absent: 1h. The
                 *     report goes back 24 hours at most, in steps of five minutes.
                 */
                since?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyReportView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_prompts: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HostedPromptList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_prompt: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                prompt: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HostedPromptView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_prompt: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                prompt: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["HostedPromptDocument"];
            };
        };
        responses: {
            /** @description Replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HostedPromptView"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HostedPromptView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_prompt: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                prompt: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_revocations: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RevocationList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    revoke_tokens: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewRevocation"];
            };
        };
        responses: {
            /** @description Widened */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RevocationView"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RevocationView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_revocation: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_toolsets: {
        parameters: {
            query?: {
                /** @description Maximum number of entries on a page; absent: all entries. */
                limit?: number;
                /** @description `next` of the page before. */
                after?: string;
            };
            header?: never;
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ToolsetList"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_toolset: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                toolset: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ToolsetView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_toolset: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                toolset: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ToolsetDocument"];
            };
        };
        responses: {
            /** @description Replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ToolsetView"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ToolsetView"];
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_toolset: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example default */
                tenant: string;
                toolset: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listen_to_trial: {
        parameters: {
            query?: {
                /** @description Endpoint of one backend. Absent, without `toolset`: that of all backends. */
                backend?: string;
                /** @description Endpoint of a published toolset, instead of one backend. */
                toolset?: string;
            };
            header?: {
                "Mcp-Broker-Subject"?: string | null;
            };
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description An event stream */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    try_message: {
        parameters: {
            query?: {
                /** @description Endpoint of one backend. Absent, without `toolset`: that of all backends. */
                backend?: string;
                /** @description Endpoint of a published toolset, instead of one backend. */
                toolset?: string;
            };
            header?: {
                "Mcp-Broker-Subject"?: string | null;
            };
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        /** @description A message of MCP */
        requestBody: {
            content: {
                "application/json": Record<string, never>;
            };
        };
        responses: {
            /** @description The answer of the data plane: a message, or an event stream */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                    "text/event-stream": string;
                };
            };
            /** @description The data plane accepted a notification or a response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    end_trial: {
        parameters: {
            query?: {
                /** @description Endpoint of one backend. Absent, without `toolset`: that of all backends. */
                backend?: string;
                /** @description Endpoint of a published toolset, instead of one backend. */
                toolset?: string;
            };
            header?: {
                "Mcp-Broker-Subject"?: string | null;
            };
            path: {
                /** @example default */
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Refused: `type` names the reason, and `detail` explains it */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_health: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
        };
    };
    show_metrics: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                };
            };
        };
    };
    show_readiness: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
            /** @description Starting, draining or without its database */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
        };
    };
}
