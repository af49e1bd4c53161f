//! Access tokens, ID tokens and tokens of operators: the verdict of the broker against a naive reading
//! of each rule, with serde_json and AWS-LC, and against the crate `jsonwebtoken`.
//!
//! An input has lines: a header, claims, the name of a signer, and changes of the signed token. A
//! token of random bytes would never get past its header.

use std::{
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use broker::auth::is_printable;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, jwk::JwkSet};
use protocol::{ids::EndpointName, json::DEPTH_MAX};
use rules::limits::tokens::{
    TOKEN_BYTES_MAX, TOKEN_KEY_ID_BYTES_MAX, TOKEN_LEEWAY, TOKEN_PRINCIPAL_BYTES_MAX,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    text_changes,
    token_rig::{ADMIN, CLIENT, ISSUER, NONCE, PublishedKey, RESOURCE, ROLES, TENANT, TokenRig},
};
use crate::{
    Outcome, Target,
    json_oracle::{elements, has_duplicate, members},
};

pub(super) const TARGET: Target = Target {
    name: "tokens",
    tokens: &[
        "\"alg\":\"EdDSA\",",
        "\"alg\":\"ES256\",",
        "\"alg\":\"none\",",
        "\"alg\":\"HS256\",",
        "\"\\u0061lg\":\"ES256\",",
        "\"kid\":\"ed\",",
        "\"kid\":\"ec\",",
        "\"typ\":\"at+jwt\",",
        "\"typ\":\"JWT\",",
        "\"typ\":\"application/at+jwt\",",
        "\"typ\":\"ID\",",
        "\"crit\":[\"exp\"],",
        "\"iss\":\"https://login.example.com/t\",",
        "\"sub\":\"ann\",",
        "\"sub\":\"hush-hush\",",
        "\"aud\":\"https://mcp.example.com\",",
        "\"aud\":\"https://mcp.example.com/mcp/weather\",",
        "\"aud\":\"https://mcp.example.com/admin/v1\",",
        "\"aud\":[\"console\"],",
        "\"azp\":\"console\",",
        "\"nonce\":\"n-0S6_WzA2Mj\",",
        "\"at_hash\":\"a\",",
        "\"roles\":[\"admin\"],",
        "\"exp\":4102444800,",
        "\"exp\":1,",
        "\"iat\":1700000000,",
        "\"nbf\":4102444800,",
        "\"cnf\":{\"x5t#S256\":\"a\"},",
        "1e3",
        "-0",
        "null",
        "\\u200b",
        "\n",
        "\ned\n",
        "\nec\n",
        "\nstranger\n",
        "\nhmac\n",
        "\nnone\n",
    ],
    bytes_max: 1024,
    check,
};

static RIG: LazyLock<TokenRig> = LazyLock::new(TokenRig::new);

/// Shortest part of a token that an answer or the log shows by no accident.
const TELLING_BYTES: usize = 24;
/// Text of strangers, which no answer and no line of the log holds.
const OF_STRANGERS: &str = "hush-hush";

fn check(input: &[u8]) -> Outcome {
    let as_it_is = String::from_utf8_lossy(input);
    // A JWT cannot hold a line break, so this input is not one with the parts below.
    let plain = verdicts(&as_it_is);
    let mut lines = input.splitn(4, |byte| *byte == b'\n');
    let [header, claims, signer, changes] = std::array::from_fn(|_| lines.next().unwrap_or(b""));
    let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let signature = RIG.keys.signature(signer, &signed);
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
    let good = verdicts(&token);
    let changed = text_changes::changed(token.as_bytes(), changes);
    let changed = String::from_utf8_lossy(&changed);
    let of_changed = (changed != token).then(|| {
        let told = verdicts(&changed);
        assert!(told.0.iter().all(|proven| !proven), "{changed} is not {token}");
        told
    });
    Outcome::of(&(plain, good, of_changed))
}

/// A use of tokens. Each has an audience of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenUse {
    Access,
    Operator,
    SignIn,
}

/// Returns for each use whether the broker accepts the token, and its log, without text of the token.
fn verdicts(token: &str) -> ([bool; 3], String) {
    let mut logs = String::new();
    let accepted = [TokenUse::Access, TokenUse::Operator, TokenUse::SignIn].map(|purpose| {
        // A token may expire between two readings of the clock.
        let before = proven_naively(token, purpose);
        let (proven, log) = proven(token, purpose);
        if proven != before {
            assert_eq!(proven, proven_naively(token, purpose), "{purpose:?} of {token}");
        }
        if proven.is_some() && purpose == TokenUse::Access {
            assert!(is_read_elsewhere(token), "jsonwebtoken refuses {token}");
        }
        logs.push_str(&log);
        proven.is_some()
    });
    (accepted, logs)
}

/// Returns the principal that the broker finds in a token, and its log.
fn proven(token: &str, purpose: TokenUse) -> (Option<String>, String) {
    let (read, log) = RIG.logged(|verifier| match purpose {
        TokenUse::Access => match verifier.verify(token, None) {
            Ok(proven) => {
                assert_eq!(proven.caller.tenant.as_str(), TENANT, "the issuer has one tenant");
                Ok(proven.caller.principal.as_str().to_owned())
            }
            Err(denied) => Err(format!("{:?}", denied.into_parts())),
        },
        TokenUse::Operator => match verifier.verify_operator(token) {
            Ok(operator) => Ok(operator.name),
            Err(denied) => Err(format!("{:?}", denied.into_parts())),
        },
        TokenUse::SignIn => match verifier.signed_in(ISSUER, NONCE, token) {
            Ok((tenant, subject)) => {
                assert_eq!(tenant.as_str(), TENANT, "the issuer has one tenant");
                Ok(subject.principal.as_str().to_owned())
            }
            Err(denied) => Err(format!("{:?}", denied.into_parts())),
        },
    });
    let answer = read.as_ref().err().cloned().unwrap_or_default();
    for told in [&answer, &log] {
        assert!(!told.contains(OF_STRANGERS), "text of strangers is told: {told}");
        for part in token.split('.').filter(|part| is_telling(part)) {
            assert!(!told.contains(part), "a part of the token is told: {told}");
        }
    }
    (read.ok(), log)
}

/// Returns whether a part of a token is in an answer by no accident: it is long, and not a sentence.
fn is_telling(part: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    part.len() >= TELLING_BYTES && part.bytes().all(is_letter)
}

/// Returns whether `jsonwebtoken`, with its own reader of JSON, accepts a token for one of the
/// audiences that the broker has.
fn is_read_elsewhere(token: &str) -> bool {
    static KEYS: LazyLock<JwkSet> = LazyLock::new(|| {
        serde_json::from_value(RIG.keys.published()).expect("a key set of RFC 7517")
    });
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.validate_nbf = true;
    validation.validate_aud = false; // the broker accepts each endpoint as an audience
    validation.set_issuer(&[ISSUER]);
    KEYS.keys.iter().any(|key| {
        let key = DecodingKey::from_jwk(key).expect("a key that can be used");
        [Algorithm::EdDSA, Algorithm::ES256].into_iter().any(|algorithm| {
            validation.algorithms = vec![algorithm];
            jsonwebtoken::decode::<Value>(token, &key, &validation).is_ok()
        })
    })
}

/// Reads a token as docs/authorization.md says it.
fn proven_naively(token: &str, purpose: TokenUse) -> Option<String> {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, claims, signature] = parts[..] else { return None };
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let header = text_of(header)?;
    let claims = text_of(claims)?;
    let (header, claims) = (Members::of(&header)?, Members::of(&claims)?);
    let is_access_token = is_marked(&header)?;
    let key = key_of(&header)?;
    let signed = &token[..token.len() - signature.len() - 1];
    if !RIG.keys.verifies(key, signed, &bytes_of(signature)?) {
        return None;
    }
    let is_id_token = ["nonce", "at_hash", "c_hash"].iter().any(|name| claims.has(name))
        || claims.text("typ").is_some_and(|kind| kind.eq_ignore_ascii_case("id"));
    let is_wanted = purpose == TokenUse::SignIn || is_access_token || !is_id_token;
    let is_bound = purpose != TokenUse::SignIn && claims.has("cnf");
    if claims.text("iss")? != ISSUER || !is_wanted || is_bound || !is_alive(&claims) {
        return None;
    }
    let audiences = claims.texts("aud");
    let is_meant = match purpose {
        TokenUse::Access => audiences.iter().any(|audience| is_endpoint(audience)),
        TokenUse::Operator => {
            audiences.contains(&format!("{RESOURCE}/admin/v1"))
                && claims.words(ROLES).contains(&ADMIN.to_owned())
        }
        TokenUse::SignIn => {
            let is_only = audiences == [CLIENT];
            let is_named = claims.text("azp").as_deref() == Some(CLIENT);
            audiences.contains(&CLIENT.to_owned())
                && (is_only || is_named)
                && claims.text("nonce").as_deref() == Some(NONCE)
        }
    };
    let subject = claims.text("sub").filter(|sub| {
        !sub.is_empty() && sub.len() <= TOKEN_PRINCIPAL_BYTES_MAX && is_printable(sub)
    })?;
    is_meant.then(|| format!("{ISSUER} {subject}"))
}

/// Returns whether the header marks an access token, or `None` for a token of another kind.
fn is_marked(header: &Members<'_>) -> Option<bool> {
    if header.has("crit") {
        return None;
    }
    if !header.has("typ") {
        return Some(false);
    }
    match header.text("typ")?.to_ascii_lowercase().as_str() {
        "at+jwt" | "application/at+jwt" => Some(true),
        "jwt" => Some(false),
        _ => None,
    }
}

/// Returns the only key that a header selects.
fn key_of(header: &Members<'_>) -> Option<PublishedKey> {
    let algorithm = header.text("alg")?;
    let id = match header.has("kid") {
        true => Some(header.text("kid")?),
        false => None,
    };
    if id.as_ref().is_some_and(|id| id.len() > TOKEN_KEY_ID_BYTES_MAX) {
        return None;
    }
    PublishedKey::ALL
        .into_iter()
        .find(|key| key.algorithm() == algorithm && id.as_ref().is_none_or(|id| key.id() == id))
}

/// Returns whether now is within the life of a token.
fn is_alive(claims: &Members<'_>) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let leeway = TOKEN_LEEWAY.as_secs_f64();
    // Up to the year 9999.
    let time = |name| {
        let number =
            claims.read::<f64>(name).filter(|time| (0.0..253_402_300_800.0).contains(time));
        if claims.has(name) { number.map(Some) } else { Some(None) }
    };
    let (Some(end), Some(begin), Some(issued)) = (time("exp"), time("nbf"), time("iat")) else {
        return false;
    };
    end.is_some_and(|end| end + leeway > now)
        && [begin, issued].into_iter().flatten().all(|begin| begin <= now + leeway)
}

fn is_endpoint(audience: &str) -> bool {
    let Some(path) = audience.strip_prefix(RESOURCE) else { return false };
    let name = path.strip_prefix("/mcp/");
    matches!(path, "" | "/" | "/mcp" | "/mcp/")
        || name.is_some_and(|name| EndpointName::parse(name).is_ok())
}

/// Decodes base64url that has the only spelling of its bytes.
fn bytes_of(part: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    (!bytes.is_empty() && URL_SAFE_NO_PAD.encode(&bytes) == part).then_some(bytes)
}

fn text_of(part: &str) -> Option<String> {
    String::from_utf8(bytes_of(part)?).ok()
}

/// An object without a duplicate member, as serde_json finds its members.
struct Members<'a>(Vec<(String, &'a str)>);

impl<'a> Members<'a> {
    fn of(object: &'a str) -> Option<Self> {
        let depth = depth(object);
        // serde_json reads one level less into a tree.
        let is_json = depth == DEPTH_MAX || serde_json::from_str::<Value>(object).is_ok();
        let is_read = is_json && depth <= DEPTH_MAX && !has_duplicate(object.trim());
        members(object).filter(|_| is_read).map(Self)
    }

    fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.raw(name)?).ok()
    }

    fn text(&self, name: &str) -> Option<String> {
        self.read(name)
    }

    /// Returns a text, or all texts of a list.
    fn texts(&self, name: &str) -> Vec<String> {
        let Some(value) = self.raw(name) else { return Vec::new() };
        match elements(value) {
            Some(list) => list.iter().filter_map(|one| serde_json::from_str(one).ok()).collect(),
            None => self.text(name).into_iter().collect(),
        }
    }

    /// Returns a text, or the texts of a list that holds nothing else.
    fn words(&self, name: &str) -> Vec<String> {
        self.read(name).or_else(|| Some(vec![self.text(name)?])).unwrap_or_default()
    }
}

/// Returns the deepest nesting of brackets outside of texts.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => depth += 1,
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
