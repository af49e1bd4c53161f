//! The broker as an OAuth 2.1 client towards backends: discovery, token requests, tokens.
//!
//! Links get the header of each request from [`LinkTokens`], and report what a backend answers to
//! it. The connect page and the admin plane use [`UserTokens`] and [`Connections`].
//!
//! Invariants:
//! - Each request to an authorization server passes the egress policy of backends, uses TLS unless
//!   the server is on this machine, and follows no redirect.
//! - A credential goes to one issuer only.
//! - No token of a caller is ever sent to a backend: tokens come from token endpoints only. A
//!   caller's token goes to the token endpoint of a backend of type `token_exchange`, if its issuer
//!   permits that.
//! - No error and no log line shows a token or a credential.

mod challenge;
mod client_keys;
mod code_flow;
mod connect;
mod connections;
mod disconnect;
mod discovery;
mod exchanged;
mod fetch;
mod id_token;
mod identity;
mod lapsed_leases;
mod login_servers;
mod machine;
mod operator_logins;
mod public_address;
mod refresh;
mod registration;
mod scopes;
mod secret_text;
mod server_cache;
mod sign_in;
mod subject_rows;
mod subject_tokens;
mod token_cache;
mod token_request;
mod token_source;
mod user_tokens;
mod vault;

pub use self::{
    challenge::Challenge,
    client_keys::ClientKeys,
    code_flow::StartedLogin,
    connect::{AuthorizationAnswer, PendingLogin, connect_elicitation},
    connections::{ConnectLink, Connections},
    disconnect::ConnectedAccount,
    fetch::{ConnectReason, OauthError},
    login_servers::{CONSOLE_CALLBACK, LoginPermit, LoginServers},
    machine::{MachineTokens, RenewedToken, TokenHeader},
    operator_logins::{FinishedLogin, IssuerLogin, OperatorLogins},
    public_address::PublicAddress,
    registration::{
        CALLBACK_PATH, CLIENT_METADATA_PATH, KEY_SET_PATH, client_metadata, tenant_of_metadata,
    },
    secret_text::{digest_of, random_text},
    sign_in::{PendingSignIn, ProvenSignIn, SignIns},
    subject_tokens::SubjectTokens,
    token_cache::{LinkPost, LinkPosts, TokenCache, UsableToken},
    token_source::{LinkTokens, OauthResources, TokenSource},
    user_tokens::UserTokens,
    vault::{grant_seal_context, secret_seal_context},
};
