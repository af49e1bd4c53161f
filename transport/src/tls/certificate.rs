//! Reads the identity of a client and the validity from a certificate.
//!
//! Used by listeners that request certificates. The TLS layer has already verified the certificate
//! against the configured authorities. This file only reads its content.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use rustls::{
    pki_types::{CertificateDer, UnixTime},
    server::danger::ClientCertVerifier,
};
use x509_parser::{
    asn1_rs::{FromDer, Tag},
    certificate::X509Certificate,
    extensions::GeneralName,
    x509::AttributeTypeAndValue,
};

/// Prefix of `mcp-broker://{tenant}/{principal}`, a URI among the subject's alternative names.
const URI_PREFIX: &str = "mcp-broker://";

/// The leaf certificate, whose key the client proved to have, and its intermediates.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    leaf: CertificateDer<'static>,
    intermediates: Vec<CertificateDer<'static>>,
}

/// The tenant and principal that a certificate names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CertificateIdentity {
    pub tenant: String,
    pub principal: String,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientCertificate").field(&self.identity()).finish()
    }
}

impl ClientCertificate {
    pub(crate) fn new(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (leaf, intermediates) = chain.split_first()?;
        let intermediates = intermediates.iter().map(|one| one.clone().into_owned()).collect();
        Some(Self { leaf: leaf.clone().into_owned(), intermediates })
    }

    /// Returns the leaf certificate in DER.
    pub fn leaf_der(&self) -> &[u8] {
        &self.leaf
    }

    /// Returns whether the verifier would accept the certificate now.
    pub(super) fn is_trusted_by(&self, verifier: &dyn ClientCertVerifier) -> bool {
        verifier.verify_client_cert(&self.leaf, &self.intermediates, UnixTime::now()).is_ok()
    }

    /// Returns the remaining validity, or `None` if it cannot be read from the certificate.
    pub(super) fn remaining_validity(&self) -> Option<Duration> {
        Some(valid_until(&self.leaf)?.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Returns the identity in the certificate: the URI, or else organisation (tenant) and common
    /// name (principal) of the subject.
    ///
    /// Returns `None` if the certificate names no identity or an ambiguous one. An invalid URI with
    /// the broker's prefix does not fall back to the subject.
    pub fn identity(&self) -> Option<CertificateIdentity> {
        let certificate = parse(&self.leaf)?;
        let alternatives = certificate
            .subject_alternative_name()
            .ok()?
            .map(|extension| &extension.value.general_names);
        let uris = alternatives.into_iter().flatten().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let mut identity_uris = uris.filter_map(|uri| uri.strip_prefix(URI_PREFIX)).peekable();
        if identity_uris.peek().is_none() {
            return subject_identity(&certificate);
        }
        let identity = identity_of_uri(identity_uris.next()?)?;
        identity_uris.next().is_none().then_some(identity)
    }

    /// Returns the organizational units (OU) of the subject. `None` if one of them cannot be read.
    pub fn organizational_units(&self) -> Option<Vec<String>> {
        let certificate = parse(&self.leaf)?;
        certificate.subject().iter_organizational_unit().map(text).collect()
    }
}

fn identity_of_uri(path: &str) -> Option<CertificateIdentity> {
    let (tenant, principal) = path.split_once('/')?;
    let plain = |part: &str| !part.is_empty() && !part.contains(['/', '?', '#', '%']);
    (plain(tenant) && plain(principal))
        .then(|| CertificateIdentity { tenant: tenant.to_owned(), principal: principal.to_owned() })
}

fn subject_identity(certificate: &X509Certificate<'_>) -> Option<CertificateIdentity> {
    let subject = certificate.subject();
    Some(CertificateIdentity {
        tenant: only(subject.iter_organization())?,
        principal: only(subject.iter_common_name())?,
    })
}

/// Returns the value of an attribute that the subject has once, as text.
fn only<'a>(mut values: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Option<String> {
    let value = values.next()?;
    if values.next().is_some() { None } else { text(value) }
}

fn text(value: &AttributeTypeAndValue<'_>) -> Option<String> {
    let is_text =
        matches!(value.attr_value().tag(), Tag::Utf8String | Tag::PrintableString | Tag::Ia5String);
    value.as_str().ok().filter(|value| is_text && !value.is_empty()).map(str::to_owned)
}

/// Returns the end of a certificate's validity. A time before 1970 counts as 1970.
pub(super) fn valid_until(certificate: &[u8]) -> Option<SystemTime> {
    let until = parse(certificate)?.validity().not_after.timestamp();
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_secs(u64::try_from(until).unwrap_or_default()))
}

fn parse(certificate: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(certificate).ok().map(|(_, certificate)| certificate)
}
