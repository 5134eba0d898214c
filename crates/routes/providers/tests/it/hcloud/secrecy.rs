//! The token is sent to the API and appears in no error or debug text.

use std::fs;

use super::*;

#[tokio::test]
async fn the_token_appears_in_no_debug_text_and_in_no_error() {
    let double = double(HcloudOptions::default()).await;
    let settings = settings(&double, "weft");
    assert!(!format!("{settings:?}").contains(TOKEN));
    let provider = HcloudProvider::new(settings, Calls::default()).unwrap();
    assert!(!format!("{provider:#?}").contains(TOKEN));
    // A server that repeats the request in its answer.
    double.add_fault(Fault::fail(
        "list_networks",
        1,
        &format!("bad token {TOKEN}"),
    ));
    let error = provider.list().await.result.unwrap_err();
    let texts = format!("{error} {error:?}");
    assert!(texts.contains("bad token"), "{texts}");
    assert!(!texts.contains(TOKEN), "{texts}");
}

#[tokio::test]
async fn a_wrong_token_is_forbidden() {
    let double = double(HcloudOptions::default()).await;
    let wrong = HcloudSettings {
        token: HcloudToken::given("wrong").unwrap(),
        ..settings(&double, "weft")
    };
    let provider = HcloudProvider::new(wrong, Calls::default()).unwrap();
    assert_eq!(provider.list().await.result, Err(ProviderError::Forbidden));
    assert_eq!(double.count("list_networks", "unauthorized"), 1);
}

#[tokio::test]
async fn a_token_in_a_file_is_read_again_when_it_changes() {
    let double = double(HcloudOptions::default()).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "expired\n").unwrap();
    let from_file = HcloudSettings {
        token: HcloudToken::in_file(&file).unwrap(),
        ..settings(&double, "weft")
    };
    let provider = HcloudProvider::new(from_file, Calls::default()).unwrap();
    assert_eq!(provider.list().await.result, Err(ProviderError::Forbidden));
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
    fs::remove_file(&file).unwrap();
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
}

#[test]
fn no_token_is_an_error_at_the_start() {
    assert!(HcloudToken::given("  ").is_err());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let error = HcloudToken::in_file(&file).unwrap_err().to_string();
    assert!(error.contains("token"), "{error}");
    fs::write(&file, "\n").unwrap();
    assert!(HcloudToken::in_file(&file).is_err());
}
