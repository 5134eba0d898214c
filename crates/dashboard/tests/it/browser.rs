//! The page in a headless Chromium.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weft_dashboard::{
    Board, DashboardServer, Pages, Reach, State, Token,
    state::{Action, Note, ProcessState, now},
};
use weft_testkit::free_port;

use crate::{
    access::RecordingControl,
    chromium::{self, Browser},
    fixture::{self, HOSTILE},
};

const DESKTOP: (u32, u32) = (1400, 1000);

/// A served page and the browser that shows it.
struct Show {
    board: Board,
    control: RecordingControl,
    browser: Browser,
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Show {
    async fn of(state: State) -> Option<Self> {
        let chromium = chromium::find()?;
        let board = Board::new(state);
        let control = RecordingControl::default();
        let token = Token::random().unwrap();
        let pages = Pages::new(board.clone()).control(control.clone(), token);
        // A test that starts the server again at the same address must find it free.
        // Another process may take it before this one does.
        let (address, server) = (0..10)
            .find_map(|_| {
                let address = ([127, 0, 0, 1], free_port()).into();
                let server = DashboardServer::bind(pages.clone(), address, Reach::Loopback);
                server.ok().map(|server| (address, server))
            })
            .expect("ten ports in a row are taken");
        let url = server.url();
        let (stop, serving) = serve(server);
        let mut browser = Browser::open(chromium, &url, DESKTOP).await;
        browser.drawn().await;
        Some(Self {
            board,
            control,
            browser,
            address,
            stop,
            serving,
        })
    }

    async fn value(&mut self, expression: &str) -> Value {
        self.browser.value(expression).await
    }

    async fn count(&mut self, selector: &str) -> Value {
        self.value(&format!(
            "document.querySelectorAll({}).length",
            json!(selector)
        ))
        .await
    }

    /// The texts of all elements that a selector finds.
    async fn texts(&mut self, selector: &str) -> Vec<String> {
        let expression = format!(
            "[...document.querySelectorAll({})].map((element) => element.textContent)",
            json!(selector)
        );
        let texts: Vec<String> = serde_json::from_value(self.value(&expression).await).unwrap();
        // The page joins a number and its unit with a no-break space.
        texts
            .iter()
            .map(|text| text.replace('\u{a0}', " "))
            .collect()
    }

    async fn end(self) {
        assert_eq!(self.browser.complaints(), [""; 0]);
        self.browser.close().await;
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

fn serve(server: DashboardServer) -> (CancellationToken, JoinHandle<()>) {
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let serving = tokio::spawn(async move { server.serve(stopped).await.unwrap() });
    (stop, serving)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_nodes_pods_services_and_the_timeline() {
    let Some(mut show) = Show::of(fixture::playground(3, 36)).await else {
        return;
    };
    assert_eq!(
        show.texts("#nodes h3").await,
        ["node-1", "node-2", "node-3"]
    );
    assert_eq!(show.count("#nodes .pod").await, 36);
    let pods = show.texts("#nodes .node:first-of-type .pod .name").await;
    assert!(pods.contains(&"web-1".to_owned()), "{pods:?}");
    let words = show
        .value("document.querySelector('.pod').dataset.tip")
        .await;
    assert_eq!(words, "default/api-22\n10.244.1.12\napi · Running");
    let pool = show
        .value("document.querySelector('.bar').getAttribute('aria-label')")
        .await;
    assert_eq!(
        pool,
        "Pool of addresses: 12 assigned, 2 free, 2 cooling, demand 12, requested 16"
    );
    assert_eq!(
        show.texts("#service-rows button").await,
        [
            "default/api",
            "default/cache",
            "default/web",
            "default/web-outside"
        ]
    );
    let outside = show.texts("#service-rows tr:last-child td").await;
    assert_eq!(outside[..3], ["NodePort", "10.96.0.11", "80 → node 30080"]);
    assert_eq!(
        show.texts("#service-rows .ends .count").await[2],
        "20 of 20 ready"
    );
    let entries = show.texts("#timeline .entry .what").await;
    assert_eq!(entries.len(), 23);
    assert_eq!(
        entries[0], "pool grew by a block of 16",
        "the newest is first"
    );
    let costs = show.texts("#timeline .entry .cost").await;
    assert_eq!(costs[0], "49 ms, 1 call instead of 12");
    assert_eq!(costs[1], "+1 chain ~1 rule, 20 ms, 1 kB instead of 54 kB");
    assert_eq!(show.texts("#savings strong").await, ["98.7 %", "95 %"]);
    assert_eq!(show.count("#route-rows tr").await, 6);
    assert_eq!(
        show.count("#threads circle.knot").await,
        6,
        "a knot for each route"
    );
    assert_eq!(show.count("#process-rows tr").await, 11);
    assert_eq!(show.texts("#checks .name").await[0], "pod to pod");
    assert_eq!(show.value("document.title").await, "Weft · playground");
    assert_eq!(show.texts("#connection .text").await, ["live"]);
    show.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_look_like_markup_stay_text() {
    let Some(mut show) = Show::of(fixture::hostile()).await else {
        return;
    };
    let images = show
        .value("[...document.images].map((image) => image.getAttribute('src'))")
        .await;
    assert_eq!(images, json!(["/icon.svg"]), "only the page's own");
    let title = show.value("document.title").await;
    assert_eq!(title, format!("Weft · {HOSTILE}"), "as text, and not owned");
    for place in [
        "#nodes h3",
        "#nodes .pod .name",
        "#nodes .address",
        "#nodes .ranges",
        "#apps .name",
        "#route-rows td",
        "#service-rows button",
        "#service-rows td",
        "#timeline .what",
        "#timeline .origin",
        "#timeline .cost",
        "#process-rows th",
        "#process-rows .detail",
        "#checks .name",
        "#checks .detail",
        "#cluster-name",
        "#cluster-server",
    ] {
        let texts = show.texts(place).await;
        assert!(
            texts.iter().any(|text| text.contains(HOSTILE)),
            "{place}: {texts:?}"
        );
    }
    // The tooltip of a pod is made when the pointer enters it.
    let point = "[...document.querySelectorAll('.pod')].find((pod) => \
                 pod.textContent.includes('onerror')).dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))";
    show.value(point).await;
    assert!(show.texts("#tip").await[0].contains(HOSTILE));
    let images = show.value("document.images.length").await;
    assert_eq!(images, 1);
    show.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_appear_by_themselves_and_a_lost_connection_is_shown() {
    let Some(mut show) = Show::of(fixture::playground(1, 2)).await else {
        return;
    };
    show.board.update(|state| {
        state.nodes = fixture::playground(4, 40).nodes;
        let what = "three nodes joined".to_owned();
        let component = "test".to_owned();
        state.timeline.push(Note {
            at: now(),
            what,
            place: None,
            component,
            cost: None,
        });
    });
    show.browser
        .wait("document.querySelectorAll('.node').length === 4")
        .await;
    assert_eq!(show.count(".pod").await, 40);
    assert_eq!(show.texts("#timeline .what").await[0], "three nodes joined");
    let announcement = "document.getElementById('announcement').textContent";
    let announced = format!("{announcement} === 'three nodes joined'");
    show.browser.wait(&announced).await;
    let banner = "document.getElementById('banner').hidden";
    assert_eq!(show.value(banner).await, true);
    show.stop.cancel();
    (&mut show.serving).await.unwrap();
    show.browser.wait(&format!("{banner} === false")).await;
    let text = show.texts("#banner").await[0].clone();
    assert!(text.starts_with("Not connected since "), "{text}");
    assert_eq!(show.count(".pod").await, 40, "the last state stays");
    // Connected again.
    let fresh = Board::new(fixture::playground(2, 4));
    let server = DashboardServer::bind(Pages::new(fresh), show.address, Reach::Loopback).unwrap();
    (show.stop, show.serving) = serve(server);
    show.browser.wait(&format!("{banner} === true")).await;
    show.browser
        .wait("document.querySelectorAll('.pod').length === 4")
        .await;
    let entries = show.texts("#timeline .what").await;
    assert_eq!(
        entries.len(),
        23,
        "no entry of the former process, although numbers repeat"
    );
    assert_eq!(entries[0], "pool grew by a block of 16");
    show.browser.close().await;
    show.stop.cancel();
    show.serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_pointed_at_lights_its_pods() {
    let Some(mut show) = Show::of(fixture::playground(3, 36)).await else {
        return;
    };
    assert_eq!(show.count(".pod.lit").await, 0);
    let web = "document.querySelector('[data-service=\"default/web\"]')";
    show.value(&format!("{web}.focus()")).await;
    let lit = "[...document.querySelectorAll('.pod.lit')].every((pod) => pod.dataset.pod.startsWith('default/web-'))";
    assert_eq!(show.count(".pod.lit").await, 20);
    assert_eq!(show.value(lit).await, true);
    show.value(&format!("{web}.blur()")).await;
    assert_eq!(show.count(".pod.lit").await, 0);
    show.value(&format!("{web}.click()")).await;
    assert_eq!(
        show.value(&format!("{web}.getAttribute('aria-pressed')"))
            .await,
        "true"
    );
    assert_eq!(show.count(".pod.lit").await, 20, "kept");
    // Focus on a node highlights the nodes that its routes lead to.
    show.value("document.querySelector('[data-node=\"node-2\"]').focus()")
        .await;
    assert_eq!(show.count(".node.reached").await, 2);
    assert_eq!(show.count("circle.knot.pointed").await, 2);
    show.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_on_the_page_has_a_name_and_its_place() {
    let Some(mut show) = Show::of(fixture::playground(3, 36)).await else {
        return;
    };
    for landmark in ["main", "header", "h1"] {
        assert_eq!(show.count(landmark).await, 1, "{landmark}");
    }
    let unnamed = "[...document.querySelectorAll('section, [role=region], [role=img]')].filter((part) => \
        !part.getAttribute('aria-label') && \
        !document.getElementById(part.getAttribute('aria-labelledby'))?.textContent).length";
    assert_eq!(show.value(unnamed).await, 0);
    let bare = "[...document.querySelectorAll('table')].filter((table) => !table.caption).length";
    assert_eq!(show.value(bare).await, 0);
    assert_eq!(show.count("th:not([scope])").await, 0);
    let silent = "[...document.querySelectorAll('button')].filter((button) => \
        !(button.getAttribute('aria-label') || button.textContent.trim())).length";
    assert_eq!(show.value(silent).await, 0);
    let levels =
        "[...document.querySelectorAll('main h2, main h3')].map((heading) => heading.tagName)";
    let levels = show.value(levels).await;
    assert_eq!(levels[0], "H2", "{levels}");
    let announced = show
        .value("document.getElementById('announcement').ariaLive")
        .await;
    assert_eq!(announced, "polite");
    show.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_theme_that_was_chosen_stays() {
    let Some(mut show) = Show::of(fixture::playground(1, 1)).await else {
        return;
    };
    let ground = "getComputedStyle(document.body).backgroundColor";
    let press = "document.getElementById('theme').click()";
    show.value(press).await;
    assert_eq!(show.texts("#theme").await, ["Theme: light"]);
    let light = show.value(ground).await;
    show.value(press).await;
    assert_eq!(show.texts("#theme").await, ["Theme: dark"]);
    let dark = show.value(ground).await;
    assert_ne!(light, dark);
    let again = json!({"url": format!("http://{}/?again", show.address)});
    show.value("document.body.removeAttribute('data-drawn')")
        .await;
    show.browser.call("Page.navigate", again).await;
    show.browser.drawn().await;
    assert_eq!(show.value("location.search").await, "?again");
    assert_eq!(show.texts("#theme").await, ["Theme: dark"]);
    assert_eq!(show.value(ground).await, dark);
    show.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_shown_in_words() {
    let Some(mut show) = Show::of(fixture::troubled()).await else {
        return;
    };
    assert_eq!(
        show.texts("#nodes .state .text").await,
        ["ready", "not ready", "ready"]
    );
    assert_eq!(show.texts("#nodes .reach").await[0], "no route to node-3");
    assert_eq!(show.count(".pod[data-state=waiting]").await, 1);
    let counts = show.texts("#counts dd span").await;
    assert_eq!(counts, ["2 ready", "11 ready", "3 ready", "4 passing"]);
    let states = show.texts("#process-rows .status .text").await;
    assert_eq!(states[..4], ["running", "stopped", "failed", "starting"]);
    let server = show.texts("#cluster-server").await;
    assert!(server[0].contains("does not answer"), "{server:?}");
    let check = show.texts(".check[data-state=bad]").await;
    assert!(check[0].starts_with("failed: pod to Service"), "{check:?}");
    show.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_button_acts_with_the_token_that_left_the_address_bar() {
    let Some(mut show) = Show::of(fixture::playground(3, 6)).await else {
        return;
    };
    assert_eq!(show.value("location.hash").await, "");
    assert_eq!(show.value("location.href.includes('token')").await, false);
    let stop = "document.querySelector('[aria-label=\"stop node-2/proxy\"]')";
    show.value(&format!("{stop}.click()")).await;
    let quiet = "document.getElementById('processes-note').textContent === '' && \
                 !document.querySelector('[aria-disabled=true]')";
    show.browser.wait(quiet).await;
    assert_eq!(
        show.control.received(),
        [("node-2/proxy".to_owned(), Action::Stop)]
    );
    show.board.update(|state| {
        let mut processes = state.processes.iter_mut();
        let process = processes
            .find(|process| process.name == "node-2/proxy")
            .unwrap();
        (process.state, process.actions) = (ProcessState::Stopped, vec![Action::Start]);
    });
    show.browser.wait(&format!("{stop} === null")).await;
    assert_eq!(show.count("[aria-label='start node-2/proxy']").await, 1);
    show.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_nodes_and_three_hundred_pods_stay_usable() {
    let Some(mut show) = Show::of(fixture::playground(20, 300)).await else {
        return;
    };
    assert_eq!(show.count(".pod").await, 300);
    let sideways = "document.documentElement.scrollWidth > innerWidth";
    for width in [1400, 1000, 640, 420] {
        show.browser.resize(width, 900).await;
        assert_eq!(show.value(sideways).await, false, "{width} wide");
    }
    // The Tab key stops once for each node and once for its pods.
    assert_eq!(show.count("#nodes [tabindex='0']").await, 40);
    let began = std::time::Instant::now();
    let redraw = "(async () => { const {draw} = await import('/nodes.js'); \
        const state = await (await fetch('/api/state')).json(); const start = performance.now(); \
        for (let round = 0; round < 20; round += 1) draw(state); return performance.now() - start; })()";
    let spent = show.value(redraw).await.as_f64().unwrap();
    assert!(
        spent < 2000.0,
        "20 times the nodes: {spent} ms, {:?} in all",
        began.elapsed()
    );
    show.end().await;
}
