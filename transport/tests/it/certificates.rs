//! A certificate authority for tests, and the files it signs.

use std::{path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType, date_time_ymd,
};
use tempfile::TempDir;
use transport::{
    CertificateSource, ClientAuth, ClientTls, ClientTlsFiles, ServerTls,
    tls::{ClientIdentity, ClientIdentityFiles},
};

/// An authority and the folder for the certificates it signs.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) folder: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        // Each authority has its own name. Two authorities with one name would differ by signatures
        // only.
        params.distinguished_name.push(DnType::CommonName, folder.path().to_str().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Signs a certificate for `127.0.0.1` and `localhost` after `change` has edited it. Returns
    /// the two files.
    pub(crate) fn sign(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (PathBuf, PathBuf) {
        let mut params =
            CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (cert, private) = (
            self.folder.path().join(format!("{name}.pem")),
            self.folder.path().join(format!("{name}.key")),
        );
        std::fs::write(&cert, certificate.pem()).unwrap();
        std::fs::write(&private, key.serialize_pem()).unwrap();
        (cert, private)
    }

    /// Returns a listener's TLS with an ordinary certificate.
    pub(crate) fn server(&self, client_auth: ClientAuth) -> ServerTls {
        let (cert, key) = self.sign("server", |_| {});
        ServerTls::load(CertificateSource::Files { cert, key }, client_auth).unwrap()
    }

    /// Returns a client that trusts this authority and presents no certificate.
    pub(crate) fn client(&self) -> ClientTls {
        ClientTls::load(&ClientTlsFiles { ca: Some(self.ca()), ..ClientTlsFiles::default() })
            .unwrap()
    }

    /// Returns a client with a certificate that `change` has edited.
    pub(crate) fn client_with(&self, change: impl FnOnce(&mut CertificateParams)) -> ClientTls {
        let (cert, key) = self.sign("client", change);
        let identity =
            Some(Arc::new(ClientIdentity::load(ClientIdentityFiles { cert, key }).unwrap()));
        ClientTls::load(&ClientTlsFiles { ca: Some(self.ca()), identity, server_name: None })
            .unwrap()
    }
}

pub(crate) fn uri(uri: &str) -> SanType {
    SanType::URI(uri.try_into().unwrap())
}

pub(crate) fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
}

/// Copies the files of one certificate over those of another.
pub(crate) fn replace(with: &(PathBuf, PathBuf), over: &(PathBuf, PathBuf)) {
    std::fs::copy(&with.0, &over.0).unwrap();
    std::fs::copy(&with.1, &over.1).unwrap();
}
