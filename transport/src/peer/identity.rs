//! TLS identity of a replica: a certificate authority derived from the shared secret, and a
//! certificate made when the process starts.
//!
//! Invariant: two processes with the same secret trust each other, even if their clocks are wrong.
//! No other process is trusted.

use std::sync::Arc;

use aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PKCS_ED25519, SerialNumber,
    date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
    version::TLS13,
};

use super::{ALPN_H2, PEER_NAME};

/// The validity has no meaning here. The keys live as long as the secret and the process, and
/// clocks may be wrong.
const FIRST_YEAR: i32 = 1970;
const LAST_YEAR: i32 = 9999;

#[derive(Debug, thiserror::Error)]
#[error("the broker cannot create the certificates for replicas: {0}")]
pub struct PeerIdentityError(String);

impl PeerIdentityError {
    fn from(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// TLS configurations for both roles. The debug output omits the secret.
#[derive(Clone)]
pub struct PeerIdentity {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl std::fmt::Debug for PeerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerIdentity(…)")
    }
}

impl PeerIdentity {
    /// The secret must have been derived for this purpose alone.
    pub fn from_secret(secret: &[u8; 32]) -> Result<Self, PeerIdentityError> {
        let authority = authority(secret)?;
        // A signature of this algorithm always has the same length, and so has each handshake.
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(PeerIdentityError::from)?;
        let certificate = certificate_params(&key)?
            .signed_by(&key, &authority)
            .map_err(PeerIdentityError::from)?
            .der()
            .clone();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).map_err(PeerIdentityError::from)?;
        let (roots, key) = (Arc::new(roots), PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = client_config(&provider, &roots, certificate.clone(), key.clone_key())?;
        let server = server_config(&provider, &roots, certificate, key)?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Returns the authority. Every process that has the secret gets the same key and name.
fn authority(secret: &[u8; 32]) -> Result<CertifiedIssuer<'static, KeyPair>, PeerIdentityError> {
    let key = Ed25519KeyPair::from_seed_unchecked(secret).map_err(PeerIdentityError::from)?;
    let key = key.to_pkcs8v1().map_err(PeerIdentityError::from)?;
    let key = KeyPair::from_pkcs8_der_and_sign_algo(
        &PrivatePkcs8KeyDer::from(key.as_ref()),
        &PKCS_ED25519,
    )
    .map_err(PeerIdentityError::from)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "mcp-broker replicas");
    params.serial_number = Some(SerialNumber::from(1_u64));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_validity(&mut params);
    CertifiedIssuer::self_signed(params, key).map_err(PeerIdentityError::from)
}

fn certificate_params(key: &KeyPair) -> Result<CertificateParams, PeerIdentityError> {
    let mut params =
        CertificateParams::new(vec![PEER_NAME.to_owned()]).map_err(PeerIdentityError::from)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, PEER_NAME);
    let serial =
        key.public_key_raw().iter().take(8).fold(0, |all, byte| (all << 8) | u64::from(*byte));
    // Positive, and without leading zeros.
    params.serial_number = Some(SerialNumber::from((serial >> 2) | (1 << 62)));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    set_validity(&mut params);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(FIRST_YEAR, 1, 1);
    params.not_after = date_time_ymd(LAST_YEAR, 1, 1);
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
) -> Result<ClientConfig, PeerIdentityError> {
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(PeerIdentityError::from)?
        .with_root_certificates(Arc::clone(roots))
        .with_client_auth_cert(vec![certificate], key.into())
        .map_err(PeerIdentityError::from)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    // Connections are few and long, so each one makes a full handshake that proves both sides.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
) -> Result<ServerConfig, PeerIdentityError> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(PeerIdentityError::from)?
        .with_client_cert_verifier(verifier.build().map_err(PeerIdentityError::from)?)
        .with_single_cert(vec![certificate], key.into())
        .map_err(PeerIdentityError::from)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}
