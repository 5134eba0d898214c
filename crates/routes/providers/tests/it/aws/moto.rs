//! The aws provider against moto, an independent emulator of EC2.
//!
//! `make conformance` starts moto's server and sets `WEFT_MOTO_URL`.

use std::env;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

use super::*;

/// Asks moto for what a test needs; it reads the account's number from the key, and no signature.
async fn moto(url: &str, form: &str) -> String {
    let credential =
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/eu-central-1/ec2/aws4_request";
    let request = http::Request::post(url)
        .header(
            "authorization",
            format!("{credential}, SignedHeaders=host, Signature=0"),
        )
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Full::<Bytes>::from(format!("{form}&Version=2016-11-15")))
        .unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The text of the first element of that name.
fn element(xml: &str, name: &str) -> String {
    let (_, rest) = xml.split_once(&format!("<{name}>")).expect(xml);
    rest.split_once('<').unwrap().0.to_owned()
}

async fn instance_of_moto(url: &str, subnet: &str) -> String {
    let form = format!(
        "Action=RunInstances&ImageId=ami-12c6146b&MinCount=1&MaxCount=1&InstanceType=t3.micro\
         &SubnetId={subnet}"
    );
    element(&moto(url, &form).await, "instanceId")
}

#[tokio::test]
async fn routes_come_and_go_in_moto() {
    let Some(url) = env::var("WEFT_MOTO_URL").ok() else {
        weft_testkit::not_run("WEFT_MOTO_URL is not set: `make conformance` sets it");
        return;
    };
    let network = moto(&url, "Action=CreateVpc&CidrBlock=172.16.0.0/16").await;
    let vpc = element(&network, "vpcId");
    let form = format!("Action=CreateSubnet&VpcId={vpc}&CidrBlock=172.16.1.0/24");
    let subnet = element(&moto(&url, &form).await, "subnetId");
    let form = format!("Action=CreateRouteTable&VpcId={vpc}");
    let table = element(&moto(&url, &form).await, "routeTableId");
    let form = format!(
        "Action=CreateTags&ResourceId.1={table}&Tag.1.Key=kubernetes.io/cluster/{vpc}&Tag.1.Value=owned"
    );
    moto(&url, &form).await;
    let one = instance_of_moto(&url, &subnet).await;
    let two = instance_of_moto(&url, &subnet).await;

    let settings = settings(&url, TableChoice::Cluster(vpc));
    let provider = AwsProvider::new(settings, Calls::default()).unwrap();
    let local = provider.list().await.result.unwrap();
    assert_eq!(local.len(), 1);
    assert_eq!(local[0].mark, Mark::Foreign);
    for destination in ["10.244.1.7/24", "fd00:1::/64"] {
        let step = create(destination, to(&one));
        assert_eq!(provider.apply(&step).await.result, Ok(()), "{destination}");
    }
    let again = provider
        .apply(&create("10.244.1.0/24", to(&two)))
        .await
        .result;
    assert_eq!(again, Err(ProviderError::Conflict));
    let step = replace("10.244.1.0/24", to(&one), to(&two));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    let missing = replace("10.244.2.0/24", to(&one), to(&two));
    assert_eq!(
        provider.apply(&missing).await.result,
        Err(ProviderError::Conflict)
    );
    let mut listed = provider.list().await.result.unwrap();
    listed.retain(|route| route.mark != Mark::Foreign);
    let expected = [
        route("10.244.1.0/24", to(&two)),
        route("fd00:1::/64", to(&one)),
    ];
    assert_eq!(listed, expected);

    let ids = [one.as_str().into(), two.as_str().into(), "i-0404".into()];
    let addresses = provider.instance_addresses(&ids).await.result.unwrap();
    assert_eq!(addresses.len(), 2);
    assert!(addresses.values().all(|found| !found.is_empty()));
    let unknown = provider
        .apply(&create("10.244.3.0/24", to("i-0123456789abcdef0")))
        .await;
    assert!(
        matches!(unknown.result, Err(ProviderError::NotReady(_))),
        "{unknown:?}"
    );

    let step = delete("10.244.1.0/24", to(&two));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(provider.apply(&step).await.result, Err(ProviderError::Gone));
    let step = delete("fd00:1::/64", to(&one));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(provider.list().await.result.unwrap().len(), 1);
}
