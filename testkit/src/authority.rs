//! A test's own certificate authority: files for the broker, and clients that trust it.

use std::{path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A client's connection.
pub type ClientStream = TlsStream<TcpStream>;

/// An authority and the folder of the files it signs.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate and its key, as files and decoded.
#[derive(Debug)]
pub struct CertificateFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    der: CertificateDer<'static>,
    private: Vec<u8>,
}

impl CertificateFiles {
    /// Returns the TLS configuration of a test's own server.
    pub fn server_config(&self) -> ServerConfig {
        self.config(WebPkiClientVerifier::no_client_auth())
    }

    /// Returns a TLS configuration that accepts only clients with a certificate of `clients`.
    pub fn server_config_for(&self, clients: &Authority) -> ServerConfig {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(clients.roots()), provider());
        self.config(verifier.build().expect("our own authority"))
    }

    fn config(&self, verifier: Arc<dyn ClientCertVerifier>) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.private.clone()));
        builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.der.clone()], key)
            .expect("a pair")
    }

    /// Returns the certificate itself.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Authority({})", self.folder.path().display())
    }
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, folder.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
            .expect("an authority");
        std::fs::write(folder.path().join("ca.pem"), issuer.pem())
            .expect("the temporary folder is writable");
        Self { issuer, folder }
    }

    /// Returns the file of the authority itself.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Returns a certificate for `127.0.0.1` and `localhost`.
    pub fn server(&self, file: &str) -> CertificateFiles {
        self.sign(file, vec!["127.0.0.1".to_owned(), "localhost".to_owned()], |_| {})
    }

    /// Returns a certificate for `127.0.0.1` and `localhost` that expires after this time.
    pub fn server_for(&self, file: &str, lasts: std::time::Duration) -> CertificateFiles {
        self.sign(file, vec!["127.0.0.1".to_owned(), "localhost".to_owned()], |params| {
            params.not_after = (std::time::SystemTime::now() + lasts).into();
        })
    }

    /// Returns a certificate for this name and no other.
    pub fn server_called(&self, file: &str, name: &str) -> CertificateFiles {
        self.sign(file, vec![name.to_owned()], |_| {})
    }

    /// Returns a client's certificate, which names a tenant and a principal.
    pub fn client(&self, tenant: &str, principal: &str) -> CertificateFiles {
        let uri = format!("mcp-broker://{tenant}/{principal}");
        self.sign(&format!("{tenant}-{principal}"), Vec::new(), |params| {
            params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a URI is ASCII"))];
        })
    }

    /// Returns a client's certificate of an organizational unit.
    pub fn client_of_unit(&self, tenant: &str, principal: &str, unit: &str) -> CertificateFiles {
        self.sign(&format!("{tenant}-{principal}-{unit}"), Vec::new(), |params| {
            params.distinguished_name.push(DnType::OrganizationName, tenant);
            params.distinguished_name.push(DnType::CommonName, principal);
            params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
        })
    }

    fn sign(
        &self,
        file: &str,
        names: Vec<String>,
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateFiles {
        let mut params = CertificateParams::new(names).expect("good names");
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        let (cert, path) = (
            self.folder.path().join(format!("{file}.pem")),
            self.folder.path().join(format!("{file}.key")),
        );
        std::fs::write(&cert, signed.pem()).expect("the temporary folder is writable");
        std::fs::write(&path, key.serialize_pem()).expect("the temporary folder is writable");
        CertificateFiles {
            cert,
            key: path,
            der: signed.der().clone(),
            private: key.serialize_der(),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("our own authority");
        roots
    }

    /// Returns a client's certificate that expires after this time.
    pub fn client_for(
        &self,
        tenant: &str,
        principal: &str,
        lasts: std::time::Duration,
    ) -> CertificateFiles {
        let uri = format!("mcp-broker://{tenant}/{principal}");
        self.sign(&format!("{tenant}-{principal}-short"), Vec::new(), |params| {
            params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a URI is ASCII"))];
            params.not_after = (std::time::SystemTime::now() + lasts).into();
        })
    }

    /// Returns a list of the revoked certificates of this authority, by serial numbers. Its time
    /// for the next list has passed.
    pub fn revocation_list(&self, revoked: &[u64]) -> String {
        const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);
        let days_ago = |days| (std::time::SystemTime::now() - DAY * days).into();
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: days_ago(3),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: days_ago(2),
            next_update: days_ago(1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).and_then(|list| list.pem()).expect("a list")
    }

    /// Returns a client's certificate with this serial number.
    pub fn client_numbered(&self, tenant: &str, principal: &str, serial: u64) -> CertificateFiles {
        let uri = format!("mcp-broker://{tenant}/{principal}");
        self.sign(&format!("{tenant}-{principal}-{serial}"), Vec::new(), |params| {
            params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a URI is ASCII"))];
            params.serial_number = Some(SerialNumber::from(serial));
        })
    }

    /// Returns the TLS configuration of a client that trusts this authority.
    pub fn trusting(
        &self,
        identity: Option<&CertificateFiles>,
        protocols: &[&str],
    ) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3");
        let builder = builder.with_root_certificates(self.roots());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(signed) => {
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signed.private.clone()));
                builder.with_client_auth_cert(vec![signed.der.clone()], key).expect("a pair")
            }
        };
        config.alpn_protocols =
            protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    }

    /// Returns a TLS connection to a port of 127.0.0.1.
    pub async fn connect(
        &self,
        port: u16,
        identity: Option<&CertificateFiles>,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        TlsConnector::from(Arc::new(self.trusting(identity, protocols))).connect(name, tcp).await
    }
}
