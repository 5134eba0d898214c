//! A cluster with a route table for each zone.

use super::*;

fn three_tables() -> Ec2Options {
    let tables = ["rtb-a", "rtb-b", "rtb-c"].map(|id| Ec2Table::tagged(id, "weft"));
    Ec2Options {
        tables: tables.into(),
        page: 2,
        ..options()
    }
}

fn provider_by_tag(double: &Ec2Double) -> AwsProvider {
    let choice = TableChoice::Cluster("weft".to_owned());
    let settings = settings(&double.endpoint(), choice);
    AwsProvider::new(settings, Calls::default()).unwrap()
}

#[tokio::test]
async fn one_step_applies_to_all_tables_of_all_pages() {
    let double = double(three_tables()).await;
    let provider = provider_by_tag(&double);
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
    assert_eq!(double.calls_of("DescribeRouteTables"), 2, "two pages");
    let step = create("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    let everywhere = ["rtb-a", "rtb-b", "rtb-c"];
    let expected = everywhere.map(|table| to_instance(table, "10.244.1.0/24", "i-1"));
    assert_eq!(double.routes(), expected);
    let listed = provider.list().await.result.unwrap();
    assert_eq!(listed, [route("10.244.1.0/24", to("i-1"))]);
    let step = delete("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(double.routes(), []);
}

#[tokio::test]
async fn a_route_that_is_missing_in_one_table_is_listed_as_broken_and_replaced_in_all() {
    let double = double(three_tables()).await;
    double.put_route(to_instance("rtb-a", "10.244.1.0/24", "i-1"));
    double.put_route(to_instance("rtb-b", "10.244.1.0/24", "i-2"));
    let provider = provider_by_tag(&double);
    let listed = provider.list().await.result.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].blackhole);
    let step = replace("10.244.1.0/24", to("i-1"), to("i-1"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    let listed = provider.list().await.result.unwrap();
    assert_eq!(listed, [route("10.244.1.0/24", to("i-1"))]);
    assert_eq!(double.routes().len(), 3);
}

#[tokio::test]
async fn a_route_that_is_in_some_tables_only_can_be_deleted() {
    let double = double(three_tables()).await;
    double.put_route(to_instance("rtb-b", "10.244.1.0/24", "i-2"));
    let provider = provider_by_tag(&double);
    let step = delete("10.244.1.0/24", to("i-2"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(double.routes(), []);
    assert_eq!(provider.apply(&step).await.result, Err(ProviderError::Gone));
}

#[tokio::test]
async fn a_step_that_fails_after_the_first_table_is_uncertain() {
    let double = double(three_tables()).await;
    double.put_route(to_instance("rtb-b", "10.244.1.0/24", "i-2"));
    let provider = provider_by_tag(&double);
    let step = create("10.244.1.0/24", to("i-1"));
    let result = provider.apply(&step).await.result;
    assert_eq!(result, Err(ProviderError::Uncertain));
    double.add_fault(Fault::fail("CreateRoute", 1, "RouteLimitExceeded"));
    let step = create("10.244.2.0/24", to("i-1"));
    let result = provider.apply(&step).await.result;
    assert_eq!(result, Err(ProviderError::Quota), "nothing was changed");
}
