//! The key that signs ServiceAccount tokens: generated, kept in a file, or given as PEM.
//!
//! Keys and signatures use random bytes of the operating system, never of the server's seed: a
//! client that knows the seed could compute them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::{
    digest,
    rand::SystemRandom,
    rsa,
    signature::{
        self, ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
        RsaKeyPair, UnparsedPublicKey,
    },
};
use serde_json::{Value, json};
use thiserror::Error;
use tokio_rustls::rustls::pki_types::{
    PrivateKeyDer,
    pem::{self, PemObject as _},
};

use crate::private_file;

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
const BIT_STRING: u8 = 0x03;
/// The INTEGER 0: PKCS #8's version.
const VERSION: &[u8] = &[0x02, 0x01, 0x00];
/// AlgorithmIdentifier of an EC key on P-256.
const EC_P256: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
    0xce, 0x3d, 0x03, 0x01, 0x07,
];
/// AlgorithmIdentifier of an RSA key.
const RSA: &[u8] = &[
    0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];

/// A signing key that cannot be used.
#[derive(Debug, Error)]
pub enum SigningKeyError {
    /// The file cannot be read.
    #[error("cannot read signing key {}", path.display())]
    Read {
        /// The given file, or `service-account.key` of the data directory.
        path: PathBuf,
        /// Never of the contents: those are [`Self::Pem`] and below.
        source: io::Error,
    },
    /// A generated key cannot be written.
    #[error("cannot write signing key {}", path.display())]
    Write {
        /// `service-account.key` of the data directory.
        path: PathBuf,
        /// Of writing the temporary file, or of renaming it.
        source: io::Error,
    },
    /// The text holds no private key.
    #[error("signing key is not a PEM private key")]
    Pem(#[source] pem::Error),
    /// The key is of a type that tokens are not signed with.
    #[error("signing key is not an RSA or P-256 key: {0}")]
    Rejected(String),
    /// The operating system provided no random bytes.
    #[error("cannot generate a signing key: the operating system provided no random bytes")]
    NoRandomness,
}

/// A private key for ServiceAccount tokens: P-256 (ES256) or RSA (RS256).
#[derive(Clone)]
pub struct SigningKey {
    pair: Arc<Pair>,
    /// Base64 of the SHA-256 of the public key in DER, as kube-apiserver names its keys.
    id: String,
}

enum Pair {
    P256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("SigningKey").field(&self.id).finish()
    }
}

impl SigningKey {
    /// A new P-256 key.
    pub fn generate() -> Result<Self, SigningKeyError> {
        let document = generate_pkcs8()?;
        Self::p256(document.as_ref())
    }

    /// The first private key of a PEM text: PKCS #8, PKCS #1 or SEC 1.
    pub fn from_pem(text: &[u8]) -> Result<Self, SigningKeyError> {
        match PrivateKeyDer::from_pem_slice(text).map_err(SigningKeyError::Pem)? {
            PrivateKeyDer::Pkcs1(key) => Self::rsa(RsaKeyPair::from_der(key.secret_pkcs1_der())),
            PrivateKeyDer::Sec1(key) => {
                let inner = element(OCTET_STRING, &[key.secret_sec1_der()]);
                Self::p256(&element(SEQUENCE, &[VERSION, EC_P256, &inner]))
            }
            PrivateKeyDer::Pkcs8(key) => {
                let der = key.secret_pkcs8_der();
                Self::p256(der).or_else(|_| Self::rsa(RsaKeyPair::from_pkcs8(der)))
            }
            _ => Err(SigningKeyError::Rejected("unknown encoding".to_owned())),
        }
    }

    /// The key of a PEM file.
    pub fn read(path: &Path) -> Result<Self, SigningKeyError> {
        let text = std::fs::read(path).map_err(|source| SigningKeyError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_pem(&text)
    }

    /// Reads the key of a file; generates one and writes it, readable by its owner only, when the
    /// file does not exist.
    pub(crate) fn kept_at(path: &Path) -> Result<Self, SigningKeyError> {
        match Self::read(path) {
            Err(SigningKeyError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        let document = generate_pkcs8()?;
        let text = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            STANDARD.encode(document.as_ref())
        );
        private_file::write(path, &text).map_err(|source| SigningKeyError::Write {
            path: path.to_owned(),
            source,
        })?;
        Self::p256(document.as_ref())
    }

    fn p256(pkcs8: &[u8]) -> Result<Self, SigningKeyError> {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8, &SystemRandom::new())
            .map_err(|error| SigningKeyError::Rejected(error.to_string()))?;
        let info = public_key_info(EC_P256, pair.public_key().as_ref());
        Ok(Self::new(Pair::P256(pair), &info))
    }

    fn rsa(read: Result<RsaKeyPair, ring::error::KeyRejected>) -> Result<Self, SigningKeyError> {
        let pair = read.map_err(|error| SigningKeyError::Rejected(error.to_string()))?;
        let info = public_key_info(RSA, pair.public_key().as_ref());
        Ok(Self::new(Pair::Rsa(pair), &info))
    }

    fn new(pair: Pair, public_key_info: &[u8]) -> Self {
        let hash = digest::digest(&digest::SHA256, public_key_info);
        Self {
            pair: Arc::new(pair),
            id: URL_SAFE_NO_PAD.encode(hash),
        }
    }

    /// The key ID (`kid`) in the header of tokens.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The signature algorithm (`alg`) in the header of tokens.
    pub(crate) fn algorithm(&self) -> &'static str {
        match &*self.pair {
            Pair::P256(_) => "ES256",
            Pair::Rsa(_) => "RS256",
        }
    }

    /// Signs a message; `None` when the operating system provides no random bytes.
    pub(super) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &*self.pair {
            Pair::P256(pair) => {
                let signature = pair.sign(&random, message).ok()?;
                Some(signature.as_ref().to_vec())
            }
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let padding = &signature::RSA_PKCS1_SHA256;
                pair.sign(padding, &random, message, &mut signature).ok()?;
                Some(signature)
            }
        }
    }

    /// True when this key made the signature.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &*self.pair {
            Pair::P256(pair) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref())
                    .verify(message, signature)
            }
            Pair::Rsa(pair) => UnparsedPublicKey::new(
                &signature::RSA_PKCS1_2048_8192_SHA256,
                pair.public_key().as_ref(),
            )
            .verify(message, signature),
        };
        verified.is_ok()
    }

    /// The public key as a JSON Web Key (RFC 7517).
    pub(crate) fn public_jwk(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match &*self.pair {
            Pair::P256(pair) => {
                // 0x04, then both coordinates.
                let point = pair.public_key().as_ref();
                let (x, y) = point[1..].split_at(point.len() / 2);
                json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y)})
            }
            Pair::Rsa(pair) => {
                let parts = rsa::PublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({"kty": "RSA", "n": encode(&parts.n), "e": encode(&parts.e)})
            }
        };
        jwk["use"] = "sig".into();
        jwk["kid"] = self.id.as_str().into();
        jwk["alg"] = self.algorithm().into();
        jwk
    }
}

fn generate_pkcs8() -> Result<ring::pkcs8::Document, SigningKeyError> {
    EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
        .map_err(|_| SigningKeyError::NoRandomness)
}

/// SubjectPublicKeyInfo (RFC 5280).
fn public_key_info(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let bits = element(BIT_STRING, &[&[0], key]);
    element(SEQUENCE, &[algorithm, &bits])
}

/// A DER element.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let digits: Vec<u8> = length.into_iter().skip_while(|digit| *digit == 0).collect();
    let mut element = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => element.push(short),
        _ => {
            let count = u8::try_from(digits.len()).unwrap_or(u8::MAX);
            element.push(0x80 | count);
            element.extend(digits);
        }
    }
    element.extend(content);
    element
}
