//! Opening providers by name.
//!
//! Environment variables are given to child processes, never set in this one: other tests run at
//! the same time.

use std::{env, fs, path::Path, process::Command};

use weft_providers::{Calls, OpenError};
use weft_testkit::clouds::{Ec2Double, Ec2Options, HcloudDouble, HcloudOptions};

#[tokio::test]
async fn an_unknown_provider_is_an_error_that_lists_the_known_ones() {
    let opened = weft_providers::open("gce", None, Calls::default()).await;
    let error = opened.err().unwrap().to_string();
    assert_eq!(
        error,
        "\"gce\" is not a provider: expected aws, hcloud or netlink"
    );
}

#[tokio::test]
async fn the_memory_needs_no_settings() {
    let provider = weft_providers::open("memory", None, Calls::default())
        .await
        .unwrap();
    assert_eq!(provider.name(), "memory");
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
}

#[tokio::test]
async fn aws_without_tables_and_with_a_broken_file_says_so() {
    let without = weft_providers::open("aws", None, Calls::default()).await;
    assert!(matches!(without, Err(OpenError::Aws(_))));
    let missing = Path::new("/nonexistent/aws.conf");
    let missing = weft_providers::open("aws", Some(missing), Calls::default()).await;
    assert!(matches!(missing, Err(OpenError::Aws(_))));
}

#[tokio::test]
async fn hcloud_takes_its_settings_from_the_environment() {
    let double = HcloudDouble::start(HcloudOptions::default()).await.unwrap();
    let mut child = child("hcloud");
    child.env("HCLOUD_ENDPOINT", double.endpoint());
    child.env("HCLOUD_TOKEN", "t0ken");
    child.env("HCLOUD_NETWORK", "weft");
    assert_lists(child).await;
    assert_eq!(double.count("list_networks", "ok"), 1);
}

#[tokio::test]
async fn aws_takes_its_settings_from_file_and_environment() {
    let double = Ec2Double::start(Ec2Options::default()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aws.conf");
    fs::write(
        &file,
        "[Global]\nZone = eu-central-1a\nKubernetesClusterID = weft\n",
    )
    .unwrap();
    for variable in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2"] {
        let mut child = child("aws");
        child.env("WEFT_TEST_CLOUD_CONFIG", &file);
        child.env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE");
        child.env("AWS_SECRET_ACCESS_KEY", "s3cr3t");
        child.env("HOME", directory.path());
        child.env(variable, double.endpoint());
        assert_lists(child).await;
    }
    assert_eq!(double.count("DescribeRouteTables", "ok"), 2);
}

/// This test in a process of its own, with nothing in its environment.
fn child(provider: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "open::a_provider_is_opened_and_listed",
        "--ignored",
    ]);
    command.env_clear().env("WEFT_TEST_PROVIDER", provider);
    command
}

async fn assert_lists(mut child: Command) {
    let output = tokio::task::spawn_blocking(move || child.output()).await;
    let output = output.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[tokio::test]
#[ignore = "run by the tests above in a process of its own"]
async fn a_provider_is_opened_and_listed() {
    let name = env::var("WEFT_TEST_PROVIDER").unwrap();
    let file = env::var_os("WEFT_TEST_CLOUD_CONFIG");
    let file = file.as_ref().map(Path::new);
    let provider = weft_providers::open(&name, file, Calls::default())
        .await
        .unwrap();
    assert_eq!(provider.name(), name);
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
}
