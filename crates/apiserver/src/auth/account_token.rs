//! ServiceAccount tokens: signed JWTs (RFC 7519), as kube-apiserver issues them.
//!
//! The server keeps no list of tokens. The signature shows who issued one; the ServiceAccount and
//! the object it is bound to are looked up at every use, so deleting either revokes the token.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{SigningKey, User};
use crate::{
    api::Api,
    meta::Meta as _,
    random::uuid,
    status::{ApiError, Outcome},
    store::{Object, Stored, object_key},
};

/// Default issuer and audience of tokens.
pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc";

/// Time after `deletionTimestamp` during which a token of the object stays valid: upstream's
/// allowance for clock skew.
const DELETION_LEEWAY: SignedDuration = SignedDuration::from_secs(60);

/// Issues and verifies tokens.
#[derive(Debug)]
pub(crate) struct TokenIssuer {
    key: SigningKey,
    name: String,
}

/// Kinds that a token can be bound to: deleting the object revokes the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoundKind {
    Pod,
    Secret,
    Node,
}

/// A validated TokenRequest.
pub(crate) struct TokenRequest<'a> {
    pub(crate) account: &'a Stored,
    pub(crate) bound: Option<(BoundKind, Object)>,
    pub(crate) audiences: Vec<String>,
    pub(crate) expires: Timestamp,
}

/// The user of a valid token, and those of the requested audiences that it is valid for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) user: User,
    pub(crate) audiences: Vec<String>,
}

/// A token that is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Not issued by this issuer; another authenticator may accept it.
    Foreign,
    /// Issued by this issuer but not valid; holds the reason.
    Invalid(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    iss: String,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: KubernetesClaims,
    nbf: i64,
    sub: String,
}

/// The claim `kubernetes.io`.
#[derive(Debug, Serialize, Deserialize)]
struct KubernetesClaims {
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Reference>,
    serviceaccount: Reference,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reference {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    uid: String,
}

impl Reference {
    fn to(object: &Object) -> Self {
        Self {
            name: object.name().to_owned(),
            uid: object.meta_text("uid").to_owned(),
        }
    }
}

/// The claims that are read before the signature is verified.
#[derive(Deserialize)]
struct Unverified {
    #[serde(default)]
    iss: String,
}

impl TokenIssuer {
    pub(crate) fn new(key: SigningKey, name: String) -> Self {
        Self { key, name }
    }

    /// The default audiences: the server itself.
    pub(crate) fn audiences(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    /// The OpenID Connect discovery document of a server at `host`.
    pub(crate) fn discovery(&self, host: &str) -> Value {
        json!({
            "issuer": self.name,
            "jwks_uri": format!("https://{host}/openid/v1/jwks"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.key.algorithm()],
        })
    }

    /// The JSON Web Key Set that verifies tokens.
    pub(crate) fn key_set(&self) -> Value {
        json!({"keys": [self.key.public_jwk()]})
    }

    /// Signs a new token.
    pub(crate) fn issue(&self, api: &Api, request: TokenRequest<'_>) -> Outcome<String> {
        let failed = || ApiError::internal("failed to generate token: no random bytes");
        let TokenRequest {
            account,
            bound,
            audiences,
            expires,
        } = request;
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).map_err(|_| failed())?;
        let now = api.clock.now().as_second();
        let mut claims = Claims {
            aud: audiences,
            exp: expires.as_second(),
            iat: now,
            iss: self.name.clone(),
            jti: uuid(bytes),
            kubernetes: KubernetesClaims {
                namespace: account.namespace.to_string(),
                node: None,
                pod: None,
                secret: None,
                serviceaccount: Reference {
                    name: account.name.to_string(),
                    uid: account.uid.to_string(),
                },
            },
            nbf: now,
            sub: User::service_account(&account.namespace, &account.name).name,
        };
        match bound {
            Some((BoundKind::Pod, pod)) => {
                claims.kubernetes.node = node_of(api, &pod);
                claims.kubernetes.pod = Some(Reference::to(&pod));
            }
            Some((BoundKind::Secret, secret)) => {
                claims.kubernetes.secret = Some(Reference::to(&secret));
            }
            Some((BoundKind::Node, node)) => claims.kubernetes.node = Some(Reference::to(&node)),
            None => {}
        }
        let header = json!({"alg": self.key.algorithm(), "kid": self.key.id()});
        let claims =
            serde_json::to_vec(&claims).map_err(|error| ApiError::internal(&error.to_string()))?;
        let signed = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(claims)
        );
        let signature = self.key.sign(signed.as_bytes()).ok_or_else(failed)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Verifies signature, audience, lifetime and the objects that a token depends on.
    pub(super) fn verify(
        &self,
        api: &Api,
        token: &str,
        wanted: &[String],
    ) -> Result<Verified, Rejection> {
        let claims = self.signed_claims(token)?;
        let audiences: Vec<String> = claims
            .aud
            .iter()
            .filter(|audience| wanted.contains(audience))
            .cloned()
            .collect();
        if audiences.is_empty() {
            return Err(invalid(format!(
                "token audiences {} is invalid for the target audiences {}",
                super::go_list(&claims.aud),
                super::go_list(wanted)
            )));
        }
        let now = api.clock.now().as_second();
        if now >= claims.exp {
            return Err(invalid("service account token has expired"));
        }
        if now < claims.nbf {
            return Err(invalid("service account token is not valid yet"));
        }
        claims.kubernetes.check(api)?;
        Ok(Verified {
            user: claims.user(),
            audiences,
        })
    }

    /// The claims of a token with a valid signature.
    fn signed_claims(&self, token: &str) -> Result<Claims, Rejection> {
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Rejection::Foreign);
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| Rejection::Foreign);
        let bytes = decode(claims)?;
        let unverified = serde_json::from_slice::<Unverified>(&bytes);
        if !unverified.is_ok_and(|claims| claims.iss == self.name) {
            return Err(Rejection::Foreign);
        }
        let read: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| Rejection::Foreign)?;
        if !read.kid.is_empty() && read.kid != self.key.id() {
            return Err(invalid("invalid signature, no keys found"));
        }
        let message = format!("{header}.{claims}");
        // The algorithm in the header comes from the client: it never selects how to verify.
        let verified = read.alg == self.key.algorithm()
            && self.key.verifies(message.as_bytes(), &decode(signature)?);
        if !verified {
            return Err(invalid("invalid signature"));
        }
        serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))
    }
}

impl Claims {
    fn user(&self) -> User {
        let KubernetesClaims {
            namespace,
            node,
            pod,
            serviceaccount: account,
            ..
        } = &self.kubernetes;
        let mut user = User::service_account(namespace, &account.name);
        user.uid.clone_from(&account.uid);
        let mut know = |name: &str, value: &str| {
            if !value.is_empty() {
                let key = format!("authentication.kubernetes.io/{name}");
                user.extra.insert(key, vec![value.to_owned()]);
            }
        };
        know("credential-id", &format!("JTI={}", self.jti));
        for (kind, reference) in [("node", node), ("pod", pod)] {
            if let Some(reference) = reference {
                know(&format!("{kind}-name"), &reference.name);
                know(&format!("{kind}-uid"), &reference.uid);
            }
        }
        user
    }
}

impl KubernetesClaims {
    /// Checks that account and bound object exist with the UIDs of the token.
    fn check(&self, api: &Api) -> Result<(), Rejection> {
        let namespace = self.namespace.as_str();
        let account = &self.serviceaccount;
        let key = object_key(namespace, &account.name);
        let Some(stored) = api.store.get(&"serviceaccounts".into(), &key) else {
            let text = format!("serviceaccounts {:?} not found", account.name);
            return Err(invalid(text));
        };
        if *stored.uid != *account.uid {
            let text = format!(
                "service account UID ({}) does not match claim ({})",
                stored.uid, account.uid
            );
            return Err(invalid(text));
        }
        if is_deleted(api, &stored) {
            let text = format!(
                "service account {namespace}/{} has been deleted",
                account.name
            );
            return Err(invalid(text));
        }
        // A Pod's token also names the Pod's node, but depends on the Pod only.
        let node = self.node.as_ref().filter(|_| self.pod.is_none());
        for (storage, namespace, reference) in [
            ("secrets", namespace, self.secret.as_ref()),
            ("pods", namespace, self.pod.as_ref()),
            ("nodes", "", node),
        ] {
            let Some(reference) = reference else { continue };
            let key = object_key(namespace, &reference.name);
            let bound = api.store.get(&storage.into(), &key);
            let valid =
                bound.is_some_and(|bound| *bound.uid == *reference.uid && !is_deleted(api, &bound));
            if !valid {
                return Err(invalid("service account token has been invalidated"));
            }
        }
        Ok(())
    }
}

/// True when `deletionTimestamp` is more than [`DELETION_LEEWAY`] ago, finalizers or not.
fn is_deleted(api: &Api, stored: &Stored) -> bool {
    let object = stored.decode();
    let deleted: Option<Timestamp> = object.meta_text("deletionTimestamp").parse().ok();
    let due = deleted.and_then(|at| at.checked_add(DELETION_LEEWAY).ok());
    due.is_some_and(|due| due < api.clock.now())
}

/// The node of a Pod; without a UID when the Node object does not exist.
fn node_of(api: &Api, pod: &Object) -> Option<Reference> {
    let name = pod.at(&["spec", "nodeName"])?.as_str()?;
    if name.is_empty() {
        return None;
    }
    let node = api.store.get(&"nodes".into(), name);
    Some(Reference {
        name: name.to_owned(),
        uid: node.map(|node| node.uid.to_string()).unwrap_or_default(),
    })
}

fn invalid(text: impl Into<String>) -> Rejection {
    Rejection::Invalid(text.into())
}
