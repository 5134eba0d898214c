//! EC2 instances: their addresses, and the source/destination check that is switched off before
//! they are routed to.

use std::net::IpAddr;

use weft_model::SharedStr;

use super::*;

#[tokio::test]
async fn addresses_are_asked_for_together_page_by_page_and_unknown_ones_are_absent() {
    let terminated = Ec2Instance {
        terminated: true,
        ..instance(4)
    };
    let double = double(Ec2Options {
        instances: vec![instance(1), instance(2), instance(3), terminated],
        page: 2,
        ..options()
    })
    .await;
    let ids = ["i-1", "i-3", "i-4", "i-404"].map(SharedStr::new);
    let found = provider(&double)
        .instance_addresses(&ids)
        .await
        .result
        .unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found["i-1"], [IpAddr::from([172, 16, 0, 1])]);
    assert_eq!(found["i-3"], [IpAddr::from([172, 16, 0, 3])]);
    assert_eq!(double.count("DescribeInstances", "ok"), 2);
}

#[tokio::test]
async fn an_instance_with_several_interfaces_is_reached_by_one_of_them() {
    let several = Ec2Instance {
        interfaces: vec!["eni-a".to_owned(), "eni-b".to_owned()],
        ..instance(1)
    };
    let double = double(Ec2Options {
        instances: vec![several],
        ..options()
    })
    .await;
    let provider = provider(&double);
    let first = create("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&first).await.result, Ok(()));
    assert!(!double.instance("i-1").unwrap().source_dest_check);
    assert_eq!(
        double.routes(),
        [to_instance("rtb-1", "10.244.1.0/24", "i-1")]
    );
    assert_eq!(double.count("ModifyNetworkInterfaceAttribute", "ok"), 1);
    let before = double.calls();
    let second = create("10.244.2.0/24", to("i-1"));
    assert_eq!(provider.apply(&second).await.result, Ok(()));
    assert_eq!(double.calls(), before + 1);
}

#[tokio::test]
async fn an_instance_that_gets_another_interface_is_looked_at_again() {
    let double = double(options()).await;
    let provider = provider(&double);
    let first = create("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&first).await.result, Ok(()));
    let several = Ec2Instance {
        interfaces: vec!["eni-a".to_owned(), "eni-b".to_owned()],
        ..instance(1)
    };
    double.set_instances(vec![several]);
    let second = create("10.244.2.0/24", to("i-1"));
    let refused = provider.apply(&second).await.result;
    assert!(
        matches!(refused, Err(ProviderError::NotReady(_))),
        "{refused:?}"
    );
    assert_eq!(provider.apply(&second).await.result, Ok(()));
}

#[tokio::test]
async fn no_route_is_made_to_an_instance_whose_check_stays_on() {
    let double = double(options()).await;
    let denied = Fault::fail("ModifyInstanceAttribute", 1, "UnauthorizedOperation");
    double.add_fault(denied);
    let provider = provider(&double);
    let step = create("10.244.1.0/24", to("i-1"));
    let refused = provider.apply(&step).await.result;
    assert_eq!(refused, Err(ProviderError::Forbidden));
    assert_eq!(double.routes(), []);
    assert_eq!(provider.apply(&step).await.result, Ok(()));
}

#[tokio::test]
async fn an_instance_whose_route_was_deleted_is_looked_at_again() {
    let double = double(options()).await;
    let provider = provider(&double);
    let made = create("10.244.1.0/24", to("i-1"));
    let gone = delete("10.244.1.0/24", to("i-1"));
    for step in [&made, &gone, &made] {
        assert_eq!(provider.apply(step).await.result, Ok(()));
    }
    assert_eq!(double.calls_of("ModifyInstanceAttribute"), 2);
}
