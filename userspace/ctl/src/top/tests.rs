//! Contents of the terminal, cell by cell.

use api::{AttachmentView, BandwidthView, CounterView, LimitView, PodView};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::rates::{of_pod, per_second};
use super::screen::plain;
use super::*;
use crate::render::bits;

fn limited(rate: u64, passed_bytes: u64, dropped_packets: u64) -> LimitView {
    LimitView {
        rate,
        passed_bytes,
        dropped_packets,
        marked_packets: dropped_packets / 2,
        delayed_packets: dropped_packets * 3,
        ..LimitView::default()
    }
}

fn attachment(name: &str, ifname: &str) -> AttachmentView {
    AttachmentView {
        container_id: format!("{name}-0123456789abcdef"),
        ifname: ifname.to_owned(),
        pod: Some(PodView {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }),
        ..AttachmentView::default()
    }
}

/// Two samples, two seconds apart: a pod with limits, a pod without, and a pod attached in between.
fn seconds() -> (Sample, Sample) {
    let mut cart = attachment("cart", "eth0");
    cart.bandwidth = BandwidthView {
        ingress: Some(limited(100_000_000, 1_000_000, 0)),
        egress: Some(limited(10_000_000, 5_000_000, 10)),
        ..BandwidthView::default()
    };
    let till = AttachmentView {
        pod: None,
        ..attachment("till", "net1")
    };
    let at = Instant::now();
    let before = Sample {
        at,
        attachments: vec![cart.clone(), till.clone()],
    };
    cart.bandwidth = BandwidthView {
        ingress: Some(limited(100_000_000, 13_500_000, 0)),
        egress: Some(limited(10_000_000, 7_450_000, 30)),
        ..BandwidthView::default()
    };
    let counters = CounterView {
        tx_bytes: 250_000_000,
        tx_dropped: 14,
        ..CounterView::default()
    };
    let mut fresh = attachment("new", "eth0");
    fresh.bandwidth.egress = Some(limited(1_000, 250, 0));
    fresh.counters = Some(CounterView {
        tx_bytes: 250,
        ..CounterView::default()
    });
    let now = Sample {
        at: at + Duration::from_secs(2),
        attachments: vec![
            cart,
            AttachmentView {
                counters: Some(counters),
                ..till
            },
            fresh,
        ],
    };
    (before, now)
}

fn three() -> Vec<PodRates> {
    let (before, now) = seconds();
    compare(&before, &now)
}

/// The three pods, and a hundred with long names of which every tenth has a limit.
fn hundred_and_three() -> Vec<PodRates> {
    let more = (0..100_u64).map(|index| {
        let name = format!("checkout-frontend-7c9d8b6f5-{index:05}");
        let (before, mut now) = (AttachmentView::default(), attachment(&name, "eth0"));
        let counters = CounterView {
            rx_bytes: 1_000_000 * index,
            ..CounterView::default()
        };
        now.counters = Some(counters);
        if index % 10 == 0 {
            now.bandwidth.ingress = Some(limited(800_000_000, 0, 0));
        }
        of_pod(&before, &now, 1.0)
    });
    three().into_iter().chain(more).collect()
}

fn screen() -> Screen {
    Screen::new(SortKey::Rate, String::new())
}

/// Draws the screen on a terminal of this size.
fn drawn(screen: &mut Screen, pods: &[PodRates], (width, height): (u16, u16)) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame, pods)).unwrap();
    terminal.backend().clone()
}

fn press(screen: &mut Screen, codes: impl IntoIterator<Item = KeyCode>) -> Pressed {
    let keys = codes
        .into_iter()
        .map(|code| screen.press(KeyEvent::new(code, KeyModifiers::NONE)));
    keys.last().unwrap()
}

#[test]
fn top_on_80_columns_without_pods_with_3_and_with_103() {
    for (name, pods) in [("0", vec![]), ("3", three()), ("103", hundred_and_three())] {
        let shown = drawn(&mut screen(), &pods, (80, 12));
        insta::assert_snapshot!(format!("top_80_{name}_pods"), shown);
    }
}

#[test]
fn top_on_120_columns_without_pods_with_3_and_with_103() {
    for (name, pods) in [("0", vec![]), ("3", three()), ("103", hundred_and_three())] {
        let shown = drawn(&mut screen(), &pods, (120, 12));
        insta::assert_snapshot!(format!("top_120_{name}_pods"), shown);
    }
}

#[test]
fn names_of_pods_have_20_columns_on_every_terminal_of_60_or_more() {
    for width in 60..200 {
        let shown = drawn(&mut screen(), &hundred_and_three()[3..], (width, 5));
        let text = shown.to_string();
        let line = text.lines().nth(2).unwrap();
        let name = line.trim_matches('"').get(2..).unwrap();
        let letters = name.split("  ").next().unwrap().trim().chars().count();
        assert!(letters >= 20, "{width}: {letters} in {line}");
    }
}

#[test]
fn top_once_prints_plain_text() {
    let pods = three();
    insta::assert_snapshot!(plain(&screen().selected(&pods)));
    assert_eq!(plain(&[]), "No pods.\n");
}

#[test]
fn top_marks_pods_at_their_limit_in_red() {
    let shown = drawn(&mut screen(), &three(), (120, 9));
    let line_of = |name: &str| {
        let text = shown.to_string();
        let line = text.lines().position(|line| line.contains(name)).unwrap();
        u16::try_from(line).unwrap()
    };
    let colours = |name: &str| {
        let line = line_of(name);
        let bars = (0..120).filter(|x| shown.buffer()[(*x, line)].symbol() == "█");
        let mut colours: Vec<Color> = bars.map(|x| shown.buffer()[(x, line)].fg).collect();
        colours.dedup();
        (shown.buffer()[(0, line)].symbol().to_owned(), colours)
    };
    assert_eq!(
        colours("cart"),
        ("!".to_owned(), vec![Color::Red, Color::Green])
    );
    assert_eq!(colours("till"), (" ".to_owned(), vec![]));
    assert_eq!(colours("new"), ("!".to_owned(), vec![Color::Red]));
}

#[test]
fn top_draws_a_terminal_of_any_size() {
    for width in 1..40 {
        for height in 1..6 {
            drawn(&mut screen(), &[], (width, height));
            drawn(&mut screen(), &three(), (width, height));
        }
    }
}

#[test]
fn keys_sort_filter_and_scroll_the_pods() {
    let pods = hundred_and_three();
    let mut screen = screen();
    let first = |screen: &mut Screen| {
        let text = drawn(screen, &pods, (80, 13)).to_string();
        text.lines().nth(2).unwrap()[3..].trim().to_owned()
    };
    assert!(first(&mut screen).starts_with("till-"), "busiest first");
    press(&mut screen, [KeyCode::Down, KeyCode::Down]);
    let third = first(&mut screen);
    press(&mut screen, [KeyCode::Up]);
    assert_ne!(first(&mut screen), third);
    press(&mut screen, [KeyCode::End]);
    let text = drawn(&mut screen, &pods, (80, 13)).to_string();
    assert!(text.contains("94-103 of 103"), "{text}");
    press(&mut screen, [KeyCode::PageUp]);
    let text = drawn(&mut screen, &pods, (80, 13)).to_string();
    assert!(text.contains("84-93 of 103"), "{text}");
    // The first pod by each key.
    press(&mut screen, [KeyCode::Home]);
    let mut firsts = Vec::new();
    for _ in 0..5 {
        press(&mut screen, [KeyCode::Char('s')]);
        firsts.push((screen.selected(&pods)[0].pod.clone(), screen.sort_name()));
    }
    let names: Vec<&str> = firsts.iter().map(|(_, sort)| *sort).collect();
    assert_eq!(names, ["tx", "rx", "drops", "name", "rate"]);
    assert!(firsts[1].0.ends_with("00099") && firsts[2].0 == "shop/cart");
    assert!(firsts[3].0 == "shop/cart" && firsts[4].0.starts_with("till-"));
    press(&mut screen, "/carq".chars().map(KeyCode::Char));
    press(&mut screen, [KeyCode::Backspace, KeyCode::Char('t')]);
    assert_eq!(screen.selected(&pods).len(), 1);
    press(&mut screen, [KeyCode::Enter, KeyCode::Char('/')]);
    press(&mut screen, [KeyCode::Char('x')]);
    let text = drawn(&mut screen, &pods, (80, 13)).to_string();
    assert!(text.contains("No pod has \"cartx\""), "{text}");
    assert_eq!(press(&mut screen, [KeyCode::Esc]), Pressed::Redraw);
    assert_eq!(screen.selected(&pods).len(), 103);
    assert_eq!(press(&mut screen, [KeyCode::Esc]), Pressed::Quit);
}

#[test]
fn rates_have_three_digits_at_most() {
    for (rate, text) in [
        (0.0, "0"),
        (7.0, "7"),
        (999.4, "999"),
        (999.6, "1.0k"),
        (12_345.0, "12k"),
        (9_800_000.0, "9.8M"),
        (100_000_000.0, "100M"),
        (1e15, "1.0P"),
        (4.2e19, "42000P"),
    ] {
        assert_eq!(bits(rate), text);
    }
}

/// A limit that is set again continues the counters of the previous one.
#[test]
fn top_ignores_what_a_limit_counted_before_it_was_set() {
    let mut before = attachment("cart", "eth0");
    let counters = |tx_bytes| {
        Some(CounterView {
            tx_bytes,
            ..CounterView::default()
        })
    };
    before.counters = counters(1_000);
    let mut now = before.clone();
    now.counters = counters(2_000);
    now.bandwidth.egress = Some(limited(1_000_000, 1 << 40, 1 << 20));
    let rates = of_pod(&before, &now, 1.0);
    assert_eq!((rates.tx.rate, rates.dropped()), (8_000.0, 0.0));
}

/// A counter that is smaller than before belongs to another pod.
#[test]
fn counters_that_restart_give_no_negative_rate() {
    assert!(per_second(10, 5, 1.0).abs() < f64::EPSILON);
    assert!(per_second(0, 10, 0.0).is_finite());
}
