//! ServiceAccount tokens and signing keys: independent of the seed, valid only for their purpose.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::Service as _;
use weft_apiserver::{ApiServer, AuthorizationMode, RunConfig, SigningKey, User};

use crate::support::{Answer, delete, get, post};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// SplitMix64, the generator behind names and identifiers, as an attacker knows it from its source.
mod splitmix {
    pub(super) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
    const SECOND: u64 = 0x94d0_49bb_1331_11eb;

    /// The output of a state.
    pub(super) fn output(state: u64) -> u64 {
        let mut z = (state ^ (state >> 30)).wrapping_mul(FIRST);
        z = (z ^ (z >> 27)).wrapping_mul(SECOND);
        z ^ (z >> 31)
    }

    /// The state of an output: every step of the function above can be undone.
    pub(super) fn state(output: u64) -> u64 {
        let z = unshift(output, 31).wrapping_mul(inverse(SECOND));
        let z = unshift(z, 27).wrapping_mul(inverse(FIRST));
        unshift(z, 30)
    }

    fn unshift(mixed: u64, by: u32) -> u64 {
        let mut plain = mixed;
        for _ in 0..64 / by {
            plain = mixed ^ (plain >> by);
        }
        plain
    }

    /// The inverse of an odd number modulo 2^64, by Newton's iteration.
    fn inverse(odd: u64) -> u64 {
        let mut inverse = odd;
        for _ in 0..6 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        }
        inverse
    }
}

/// The states that can have produced a version 4 UUID: six of its 128 bits are fixed.
fn states_behind(uuid: &str) -> Vec<u64> {
    let digits = uuid.replace('-', "");
    let (high, low) = digits.split_at(16);
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let (high, low) = (number(high), number(low));
    let rest = 0x3fff_ffff_ffff_ffff;
    (0..16)
        .map(|nibble| splitmix::state((high & !0xf000) | (nibble << 12)))
        .filter(|state| splitmix::output(state.wrapping_add(splitmix::STEP)) & rest == low & rest)
        .collect()
}

async fn send(server: &ApiServer, path: &str, token: Option<&str>) -> http::Response<()> {
    let mut request = Request::builder().uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(String::new()).unwrap();
    let nobody = User::anonymous();
    let answer = server.service(nobody).call(request).await.unwrap();
    answer.map(drop)
}

#[tokio::test]
async fn the_generator_behind_an_audit_id_gives_no_token() {
    for seed in [Some(7), None] {
        let mut builder = ApiServer::builder().authorization_mode(AuthorizationMode::Rbac);
        if let Some(seed) = seed {
            builder = builder.seed(seed);
        }
        let server = builder.start().await.unwrap();
        post(&server, ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
        let refused = send(&server, SECRETS, None).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        let states = states_behind(refused.headers()["audit-id"].to_str().unwrap());
        assert!(
            !states.is_empty(),
            "the attack recovers the generator's state"
        );
        // A token made now would follow the observed output, one made at start would precede it.
        post(&server, &format!("{ACCOUNTS}/robot/token"), &json!({})).await;
        let steps = 0..800_u64;
        for state in states {
            for step in steps.clone() {
                let begin = state.wrapping_add(splitmix::STEP.wrapping_mul(step.wrapping_sub(700)));
                let first = splitmix::output(begin);
                let second = splitmix::output(begin.wrapping_add(splitmix::STEP));
                for prefix in ["weft-admin-", "weft-", ""] {
                    let token = format!("{prefix}{first:016x}{second:016x}");
                    let answer = send(&server, SECRETS, Some(&token)).await;
                    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{token}");
                }
            }
        }
    }
}

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ISSUER: &str = "https://kubernetes.default.svc";

/// Requests a token of an account, which is created if it does not exist.
async fn token_of(server: &ApiServer, name: &str, spec: Value) -> Answer {
    post(server, ACCOUNTS, &json!({"metadata": {"name": name}})).await;
    let request = json!({"spec": spec});
    post(server, &format!("{ACCOUNTS}/{name}/token"), &request).await
}

async fn token(server: &ApiServer, spec: Value) -> String {
    let made = token_of(server, "robot", spec).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    made.at("/status/token").as_str().unwrap().to_owned()
}

/// The status of a review of a token for these audiences.
async fn review(server: &ApiServer, token: &str, audiences: &[&str]) -> Value {
    let question = json!({"spec": {"token": token, "audiences": audiences}});
    post(server, REVIEWS, &question).await.at("/status")
}

async fn is_known(server: &ApiServer, token: &str) -> bool {
    review(server, token, &[]).await["authenticated"] == true
}

/// Header and claims of a token.
fn parts(token: &str) -> (Value, Value) {
    let mut parts = token
        .split('.')
        .map(|part| URL_SAFE_NO_PAD.decode(part).unwrap());
    let mut next = || serde_json::from_slice(&parts.next().unwrap());
    let (header, claims) = (next(), next());
    (header.unwrap(), claims.unwrap())
}

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

#[tokio::test]
async fn two_servers_of_one_seed_share_names_and_no_secret() {
    let mut secrets = Vec::new();
    let mut names = Vec::new();
    for _ in 0..2 {
        let server = ApiServer::builder().seed(7).start().await.unwrap();
        let maps = "/api/v1/namespaces/default/configmaps";
        let made = post(&server, maps, &json!({"metadata": {"generateName": "a-"}})).await;
        names.push((made.at("/metadata/name"), made.at("/metadata/uid")));
        let token = token(&server, json!({})).await;
        let (header, claims) = parts(&token);
        let listening = server.listening().unwrap();
        let config = listening.kube_config();
        assert!(
            config.auth_info.token.is_none(),
            "a certificate identifies the administrator"
        );
        secrets.push(vec![
            token.rsplit('.').next().unwrap().to_owned(),
            header["kid"].to_string(),
            claims["jti"].to_string(),
            get(&server, "/openid/v1/jwks").await.text,
            listening.ca.clone(),
            listening.kubeconfig(),
            config.auth_info.client_certificate_data.unwrap(),
        ]);
    }
    assert_eq!(names[0], names[1], "values that are not secret repeat");
    for (first, second) in secrets[0].iter().zip(&secrets[1]) {
        assert_ne!(first, second);
    }
}

#[tokio::test]
async fn a_token_names_its_user_audience_and_lifetime() {
    let server = ApiServer::builder().build();
    let made = token_of(&server, "robot", json!({"expirationSeconds": 900})).await;
    assert_eq!(made.at("/spec/audiences"), json!([ISSUER]));
    assert_eq!(made.at("/spec/boundObjectRef"), Value::Null);
    let token = made.at("/status/token").as_str().unwrap().to_owned();
    let (header, claims) = parts(&token);
    let uid = get(&server, &format!("{ACCOUNTS}/robot"))
        .await
        .at("/metadata/uid");
    let keys = get(&server, "/openid/v1/jwks").await;
    assert_eq!(keys.headers["content-type"], "application/jwk-set+json");
    assert_eq!(
        header,
        json!({"alg": "ES256", "kid": keys.at("/keys/0/kid")})
    );
    assert_eq!(claims["iss"], ISSUER);
    assert_eq!(claims["sub"], "system:serviceaccount:default:robot");
    assert_eq!(claims["aud"], json!([ISSUER]));
    let number = |name: &str| claims[name].as_i64().unwrap();
    assert_eq!(number("exp") - number("iat"), 900);
    assert_eq!(number("nbf"), number("iat"));
    let account = json!({"namespace": "default", "serviceaccount": {"name": "robot", "uid": uid}});
    assert_eq!(claims["kubernetes.io"], account);
    let known = review(&server, &token, &[]).await;
    assert_eq!(known["user"]["uid"], uid);
    let credential = format!("JTI={}", claims["jti"].as_str().unwrap());
    let extra = &known["user"]["extra"]["authentication.kubernetes.io/credential-id"];
    assert_eq!(extra, &json!([credential]));
    let found = get(&server, "/.well-known/openid-configuration").await;
    assert_eq!(found.at("/issuer"), ISSUER);
    assert_eq!(
        found.at("/id_token_signing_alg_values_supported"),
        json!(["ES256"])
    );
}

#[tokio::test]
async fn a_modified_token_is_refused() {
    let (server, other) = (ApiServer::builder().build(), ApiServer::builder().build());
    let good = token(&server, json!({})).await;
    assert!(is_known(&server, &good).await);
    let (header, claims) = parts(&good);
    let mut fields = good.split('.');
    let (head, body, signature) = (
        fields.next().unwrap(),
        fields.next().unwrap(),
        fields.next().unwrap(),
    );
    let with_claim = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        format!("{head}.{}.{signature}", encode(&claims))
    };
    let with_header = |changed: Value, signature: &str| {
        let mut header = header.clone();
        for (name, value) in changed.as_object().unwrap() {
            header[name] = value.clone();
        }
        format!("{}.{body}.{signature}", encode(&header))
    };
    let foreign = token(&other, json!({})).await;
    let foreign_signature = foreign.rsplit('.').next().unwrap();
    let public = get(&server, "/openid/v1/jwks").await.at("/keys/0/x");
    for bad in [
        with_claim("sub", json!("system:serviceaccount:kube-system:admin")),
        with_claim("exp", json!(9_999_999_999_i64)),
        with_claim("aud", json!(["x", ISSUER])),
        with_header(json!({"alg": "none"}), ""),
        with_header(json!({"alg": "none"}), signature),
        with_header(json!({"alg": "HS256"}), public.as_str().unwrap()),
        with_header(json!({"alg": "RS256"}), signature),
        with_header(json!({"kid": "other"}), signature),
        format!("{head}.{body}.{foreign_signature}"),
        format!("{head}.{body}."),
        format!("{head}.{body}"),
        format!("{good}."),
        format!("{good}.{signature}"),
        foreign,
        String::from("a.b.c"),
        String::from(".."),
    ] {
        assert!(!is_known(&server, &bad).await, "{bad}");
        assert_eq!(
            send(&server, "/version", Some(&bad)).await.status(),
            401,
            "{bad}"
        );
    }
}

#[tokio::test]
async fn a_token_is_valid_for_its_audiences_only() {
    let server = ApiServer::builder().token("fixed", User::admin()).build();
    let own = token(&server, json!({})).await;
    let vault = token(&server, json!({"audiences": ["vault", "other"]})).await;
    for (token, audiences, good_for) in [
        (&*own, &[][..], &[ISSUER][..]),
        (&own, &["vault"], &[]),
        (&own, &["vault", ISSUER], &[ISSUER]),
        (&vault, &[], &[]),
        (&vault, &["vault"], &["vault"]),
        ("fixed", &[], &[ISSUER]),
        ("fixed", &["vault"], &[]),
    ] {
        let status = review(&server, token, audiences).await;
        let authenticated = status["authenticated"] == true;
        assert_eq!(
            authenticated,
            !good_for.is_empty(),
            "{audiences:?}: {status}"
        );
        if authenticated {
            assert_eq!(status["audiences"], json!(good_for));
        }
    }
    assert_eq!(send(&server, "/version", Some(&own)).await.status(), 200);
    assert_eq!(send(&server, "/version", Some(&vault)).await.status(), 401);
}

#[tokio::test]
async fn a_bound_token_is_revoked_with_its_object() {
    let server = ApiServer::builder().build();
    let core = "/api/v1/namespaces/default";
    let node = json!({"metadata": {"name": "n1"}});
    let node = post(&server, "/api/v1/nodes", &node)
        .await
        .at("/metadata/uid");
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "serviceAccountName": "robot", "nodeName": "n1",
        "containers": [{"name": "c", "image": "i"}],
    }});
    let pod = post(&server, &format!("{core}/pods"), &pod)
        .await
        .at("/metadata/uid");
    post(
        &server,
        &format!("{core}/secrets"),
        &json!({"metadata": {"name": "s"}}),
    )
    .await;
    let bound = async |kind: &str, name: &str, uid: &Value| {
        let reference = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
        token_of(&server, "robot", json!({"boundObjectRef": reference})).await
    };
    let pods = bound("Pod", "p", &pod).await.at("/status/token");
    let pods = pods.as_str().unwrap();
    let (_, claims) = parts(pods);
    assert_eq!(
        claims["kubernetes.io"]["pod"],
        json!({"name": "p", "uid": pod})
    );
    assert_eq!(
        claims["kubernetes.io"]["node"],
        json!({"name": "n1", "uid": node})
    );
    let status = review(&server, pods, &[]).await;
    let extra = &status["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["p"]));
    assert_eq!(
        extra["authentication.kubernetes.io/node-name"],
        json!(["n1"])
    );
    let secrets = bound("Secret", "s", &Value::Null).await.at("/status/token");
    let nodes = bound("Node", "n1", &node).await.at("/status/token");
    for (token, object) in [
        (json!(pods), format!("{core}/pods/p?gracePeriodSeconds=0")),
        (secrets, format!("{core}/secrets/s")),
        (nodes, "/api/v1/nodes/n1".to_owned()),
    ] {
        let token = token.as_str().unwrap();
        assert!(is_known(&server, token).await, "{object}");
        delete(&server, &object).await;
        let error = review(&server, token, &[]).await["error"].to_string();
        assert!(
            error.contains("service account token has been invalidated"),
            "{error}"
        );
    }
    post(
        &server,
        &format!("{core}/secrets"),
        &json!({"metadata": {"name": "s"}}),
    )
    .await;
    for (kind, name, uid, status) in [
        ("Pod", "absent", Value::Null, 404),
        ("Secret", "s", json!("another"), 409),
        ("ConfigMap", "s", Value::Null, 400),
    ] {
        assert_eq!(
            bound(kind, name, &uid).await.status.as_u16(),
            status,
            "{kind}"
        );
    }
}

#[tokio::test]
async fn tokens_stay_valid_over_a_restart_with_the_same_key() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
    config.data_dir = Some(directory.path().join("data"));
    let first = weft_apiserver::start(config.clone()).await.unwrap();
    let issued = token(&first, json!({})).await;
    assert!(first.drain(std::time::Duration::from_secs(30)).await);
    drop(first);
    let key = directory.path().join("data/service-account.key");
    let mode = std::fs::metadata(&key).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = async |config: &RunConfig| loop {
        match weft_apiserver::start(config.clone()).await {
            Ok(server) => break server,
            // The background task of the earlier run drops the state asynchronously.
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let second = again(&config).await;
    assert!(
        is_known(&second, &issued).await,
        "the account and the key are the same"
    );
    drop(second);
    config.service_account_signing_key_file = Some(signing_key("rsa-pkcs1"));
    let third = again(&config).await;
    assert!(!is_known(&third, &issued).await, "another key signs");
    drop(third);
    std::fs::write(&key, "no key").unwrap();
    config.service_account_signing_key_file = None;
    let refused = loop {
        match weft_apiserver::start(config.clone()).await {
            Err(weft_apiserver::RunError::Persistence(
                weft_apiserver::PersistenceError::SigningKey(error),
            )) => break error,
            Err(_) => tokio::task::yield_now().await,
            Ok(_) => panic!("a damaged key is not replaced"),
        }
    };
    assert_eq!(refused.to_string(), "signing key is not a PEM private key");
}

fn signing_key(name: &str) -> std::path::PathBuf {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/signing-keys");
    Path::new(directory).join(name).with_extension("pem")
}

/// The key ids are OpenSSL's: SHA-256 of `openssl pkey -pubout -outform DER`, in base64.
#[tokio::test]
async fn a_given_key_and_issuer_sign() {
    const RSA: &str = "qduJpz2MrfzcSNSQK4NhWJxuhl3WZ_ciVDHjMqdSWOQ";
    const P256: &str = "18PUxbPEf2AYKcYl7_u9ljXspR5j_zsT8vwX_k0q4wY";
    for (name, algorithm, id) in [
        ("rsa-pkcs1", "RS256", RSA),
        ("rsa-pkcs8", "RS256", RSA),
        ("p256-sec1", "ES256", P256),
    ] {
        let key = SigningKey::read(&signing_key(name)).unwrap();
        let server = ApiServer::builder()
            .service_account_signing_key(key)
            .service_account_issuer("https://issuer.example")
            .build();
        let token = token(&server, json!({})).await;
        let (header, claims) = parts(&token);
        assert_eq!(header, json!({"alg": algorithm, "kid": id}), "{name}");
        assert_eq!(claims["iss"], "https://issuer.example");
        assert_eq!(claims["aud"], json!(["https://issuer.example"]));
        assert!(is_known(&server, &token).await, "{name}");
        let (head, rest) = token.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let mut claims = claims;
        claims["sub"] = json!("somebody");
        let forged = format!("{head}.{}.{signature}", encode(&claims));
        assert!(!is_known(&server, &forged).await, "{name}");
    }
    let error = SigningKey::read(&signing_key("p384-pkcs8"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("signing key is not an RSA or P-256 key"),
        "{error}"
    );
}
