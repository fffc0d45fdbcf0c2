//! What is on the screen, cell by cell.

use api::{BandwidthView, CounterView, PodView};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

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

/// Two seconds of a pod with a limit, of one without, and of one that has just come.
fn seconds() -> (Look, Look) {
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
    let before = Look {
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
        ..CounterView::default()
    };
    let mut fresh = attachment("new", "eth0");
    fresh.bandwidth.egress = Some(limited(1_000, 250, 0));
    fresh.counters = Some(CounterView {
        tx_bytes: 250,
        ..CounterView::default()
    });
    let now = Look {
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

#[test]
fn each_direction_is_a_bar_against_its_limit() {
    let (before, now) = seconds();
    let lines = compare(&before, &now);
    let mut terminal = Terminal::new(TestBackend::new(100, 9)).unwrap();
    terminal.draw(|frame| draw(frame, &lines)).unwrap();
    insta::assert_snapshot!(terminal.backend());
}

#[test]
fn once_is_the_same_as_plain_text() {
    let (before, now) = seconds();
    insta::assert_snapshot!(plain(&compare(&before, &now)));
}

#[test]
fn who_is_at_the_limit_is_red_and_others_are_green() {
    let (before, now) = seconds();
    let lines = compare(&before, &now);
    let mut terminal = Terminal::new(TestBackend::new(100, 9)).unwrap();
    terminal.draw(|frame| draw(frame, &lines)).unwrap();
    let buffer = terminal.backend().buffer();
    let colours: Vec<_> = (2..6)
        .map(|y| {
            let bar = (0..100).find(|x| buffer[(*x, y)].symbol() == "█");
            bar.map(|x| buffer[(x, y)].fg)
        })
        .collect();
    assert_eq!(colours[..2], [Some(Color::Red), Some(Color::Green)]);
    assert_eq!(colours[2..], [None, None], "till has no limit");
}

#[test]
fn an_empty_node_and_a_narrow_terminal_are_drawn() {
    let mut terminal = Terminal::new(TestBackend::new(12, 2)).unwrap();
    terminal.draw(|frame| draw(frame, &[])).unwrap();
    let (before, now) = seconds();
    terminal
        .draw(|frame| draw(frame, &compare(&before, &now)))
        .unwrap();
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

/// A limit that is set again goes on with the counters of its first life.
#[test]
fn a_limit_that_has_just_been_set_has_no_past() {
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
    let [egress, _] = both(&before, &now, 1.0);
    assert_eq!((egress.rate, egress.dropped), (8_000.0, 0.0));
}

/// Counters that have become smaller are another pod's.
#[test]
fn counters_that_begin_anew_are_no_negative_rate() {
    assert!(per_second(10, 5, 1.0).abs() < f64::EPSILON);
    assert!(per_second(0, 10, 0.0).is_finite());
}
