//! Contents of the terminal, cell by cell.

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

#[test]
fn top_draws_each_direction_as_a_bar_against_its_limit() {
    let (before, now) = seconds();
    let lines = compare(&before, &now);
    let mut terminal = Terminal::new(TestBackend::new(100, 9)).unwrap();
    terminal.draw(|frame| draw(frame, &lines)).unwrap();
    insta::assert_snapshot!(terminal.backend());
}

#[test]
fn top_once_prints_plain_text() {
    let (before, now) = seconds();
    insta::assert_snapshot!(plain(&compare(&before, &now)));
}

#[test]
fn top_bars_are_red_at_the_limit_and_green_below_it() {
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
fn top_draws_an_empty_node_and_a_narrow_terminal() {
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
    let [egress, _] = both(&before, &now, 1.0);
    assert_eq!((egress.rate, egress.dropped), (8_000.0, 0.0));
}

/// A counter that is smaller than before belongs to another pod.
#[test]
fn counters_that_restart_give_no_negative_rate() {
    assert!(per_second(10, 5, 1.0).abs() < f64::EPSILON);
    assert!(per_second(0, 10, 0.0).is_finite());
}
