//! Who a client is by its certificate, and until when one is valid.
//!
//! Used by listeners that ask for certificates. The certificate has been verified against the configured authorities before
//! anybody sees it here; this file only reads out of it.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use jiff::{civil::DateTime, tz::TimeZone};
use rustls::{
    pki_types::{CertificateDer, UnixTime},
    server::danger::ClientCertVerifier,
};

use super::der::{self, DerElements};

/// `mcp-broker://{tenant}/{principal}` as a URI among the subject's alternative names.
const URI_PREFIX: &str = "mcp-broker://";

const OID_COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const OID_ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const OID_SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// `uniformResourceIdentifier` of a GeneralName (RFC 5280, 4.2.1.6).
const GENERAL_NAME_URI: u8 = der::implicit(6);

/// The leaf a client proved to have the key of, and what it showed with it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    leaf: CertificateDer<'static>,
    intermediates: Vec<CertificateDer<'static>>,
}

/// The tenant and principal a certificate speaks for.
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

    /// Whether it would be believed now.
    pub(super) fn is_believed_by(&self, verifier: &dyn ClientCertVerifier) -> bool {
        verifier.verify_client_cert(&self.leaf, &self.intermediates, UnixTime::now()).is_ok()
    }

    /// How long it is still valid, as far as it says so in a way we understand.
    pub(super) fn lasts(&self) -> Option<Duration> {
        Some(valid_until(&self.leaf)?.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Whom the certificate names: the URI, else organisation (tenant) and common name (principal) of the subject.
    ///
    /// `None` where it names nobody or is ambiguous; an unusable URI of ours is not passed over in favour of the subject.
    pub fn identity(&self) -> Option<CertificateIdentity> {
        let names = CertificateParts::of(&self.leaf)?;
        let mut ours =
            names.uris().into_iter().filter_map(|uri| uri.strip_prefix(URI_PREFIX)).peekable();
        if ours.peek().is_none() {
            return names.subject_identity();
        }
        let identity = identity_of_uri(ours.next()?)?;
        ours.next().is_none().then_some(identity)
    }
}

fn identity_of_uri(path: &str) -> Option<CertificateIdentity> {
    let (tenant, principal) = path.split_once('/')?;
    let plain = |part: &str| !part.is_empty() && !part.contains(['/', '?', '#', '%']);
    (plain(tenant) && plain(principal))
        .then(|| CertificateIdentity { tenant: tenant.to_owned(), principal: principal.to_owned() })
}

/// When a certificate stops being valid, if it says so in a way we understand.
pub(super) fn valid_until(certificate: &[u8]) -> Option<SystemTime> {
    let mut validity = CertificateParts::of(certificate)?.validity;
    let _from = validity.next()?;
    let (tag, text) = validity.next()?;
    let text = str::from_utf8(text).ok()?;
    // Two digits of the year are of 1950 to 2049 (RFC 5280, 4.1.2.5.1).
    let text = match tag {
        der::UTC_TIME => format!("{}{text}", if text < "50" { "20" } else { "19" }),
        der::GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let until = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(until.into())
}

/// The parts of a certificate that are looked at (RFC 5280, 4.1).
struct CertificateParts<'a> {
    validity: DerElements<'a>,
    subject: DerElements<'a>,
    extensions: DerElements<'a>,
}

impl<'a> CertificateParts<'a> {
    fn of(certificate: &'a [u8]) -> Option<Self> {
        let mut certificate = DerElements(DerElements(certificate).expect(der::SEQUENCE)?);
        let mut signed = DerElements(certificate.expect(der::SEQUENCE)?);
        let _version = signed.optional(der::explicit(0));
        let _serial = signed.expect(der::INTEGER)?;
        let _algorithm = signed.expect(der::SEQUENCE)?;
        let _issuer = signed.expect(der::SEQUENCE)?;
        let validity = DerElements(signed.expect(der::SEQUENCE)?);
        let subject = DerElements(signed.expect(der::SEQUENCE)?);
        let _public_key = signed.expect(der::SEQUENCE)?;
        let extensions =
            signed.find(|(tag, _)| *tag == der::explicit(3)).map(|(_, content)| content);
        let extensions = extensions
            .and_then(|content| DerElements(content).expect(der::SEQUENCE))
            .unwrap_or_default();
        Some(Self { validity, subject, extensions: DerElements(extensions) })
    }

    fn uris(&self) -> Vec<&'a str> {
        let alternatives = self.extensions.filter_map(|(_, extension)| {
            let mut extension = DerElements(extension);
            let is_names = extension.expect(der::OBJECT_IDENTIFIER)? == OID_SUBJECT_ALT_NAME;
            let _critical = extension.optional(der::BOOLEAN);
            let value = extension.expect(der::OCTET_STRING)?;
            if is_names { DerElements(value).expect(der::SEQUENCE) } else { None }
        });
        let uris = alternatives.flat_map(DerElements).filter(|(tag, _)| *tag == GENERAL_NAME_URI);
        uris.filter_map(|(_, uri)| str::from_utf8(uri).ok()).collect()
    }

    fn subject_identity(&self) -> Option<CertificateIdentity> {
        Some(CertificateIdentity {
            tenant: self.only(OID_ORGANIZATION)?,
            principal: self.only(OID_COMMON_NAME)?,
        })
    }

    /// The one value of an attribute of the subject.
    fn only(&self, attribute: &[u8]) -> Option<String> {
        let pairs =
            self.subject.filter(|(tag, _)| *tag == der::SET).flat_map(|(_, set)| DerElements(set));
        let mut values = pairs.filter_map(|(_, pair)| {
            let mut pair = DerElements(pair);
            (pair.expect(der::OBJECT_IDENTIFIER)? == attribute).then(|| pair.next()).flatten()
        });
        let (tag, value) = values.next()?;
        if values.next().is_some()
            || !matches!(tag, der::UTF8_STRING | der::PRINTABLE_STRING | der::IA5_STRING)
        {
            return None;
        }
        str::from_utf8(value).ok().filter(|value| !value.is_empty()).map(str::to_owned)
    }
}
