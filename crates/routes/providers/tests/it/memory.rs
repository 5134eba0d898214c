//! The memory provider: delays and counted calls.

use std::time::Duration;

use weft_providers::{CallOutcome, Calls, MemoryProvider, Provider};
use weft_routes::{
    Cidr, Moment, ProviderError,
    simulation::{CallKind, Fault, FaultKind, Profile},
};

use crate::steps::{create, via};

#[tokio::test(start_paused = true)]
async fn a_route_is_there_after_the_time_a_mutation_takes() {
    let provider = MemoryProvider::new(Profile::MEMORY, Vec::new());
    let begun = tokio::time::Instant::now();
    let answer = provider
        .apply(&create("10.1.0.0/24", via("10.0.0.1")))
        .await;
    assert_eq!(answer.result, Ok(()));
    assert_eq!(begun.elapsed(), Profile::MEMORY.mutation);
    let listed = provider.list().await.result.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].destination, Cidr::parse("10.1.0.0/24"));
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_operation_and_outcome() {
    let fails = Fault {
        call: Some(CallKind::Create),
        from: Moment::START,
        until: Moment::START + Duration::from_secs(60),
        times: 1,
        kind: FaultKind::Fails(ProviderError::Locked),
    };
    let calls = Calls::default();
    let provider = MemoryProvider::new(Profile::MEMORY, vec![fails]).counting(calls.clone());
    let step = create("10.1.0.0/24", via("10.0.0.1"));
    assert_eq!(
        provider.apply(&step).await.result,
        Err(ProviderError::Locked)
    );
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    let locked = CallOutcome::of::<()>(&Err(ProviderError::Locked));
    assert_eq!(calls.total("create", locked), 1);
    assert_eq!(calls.total("create", CallOutcome::of(&Ok(()))), 1);
    assert_eq!(calls.total("list", CallOutcome::of(&Ok(()))), 0);
}
