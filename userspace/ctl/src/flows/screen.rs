//! The list of `flows --watch` on a terminal: the columns that its width has room for.

use api::{FlowView, FlowsView};

use crate::render::{bits, flow_pod, shortened};

/// Width of names of pods.
const POD: usize = 20;
/// Width of a rate.
const RATE: usize = 6;
/// Width of a protocol.
const PROTOCOL: usize = 5;
/// Width of a state.
const STATE: usize = 11;
/// Width of a path, without the reason for it.
const PATH: usize = 9;
/// Width of a terminal from which states and paths are shown.
const WITH_STATE: usize = 100;
/// Lines that are no flows: the title and the headers.
const OTHER_LINES: usize = 2;

/// Renders flows, which have these rates in bits per second, for a terminal of `width` columns and
/// `height` lines. No line is longer.
pub(super) fn screen(
    view: &FlowsView,
    rates: &[f64],
    order: &str,
    (width, height): (u16, u16),
) -> String {
    let (width, height) = (usize::from(width), usize::from(height));
    let shown = view.flows.len().min(height.saturating_sub(OTHER_LINES));
    let title = match shown {
        0 => "No flows; q quits".to_owned(),
        _ => format!(
            "Flows 1-{shown} of {} by {order}; q quits",
            view.matching.max(shown as u64)
        ),
    };
    let mut lines = vec![shortened(&title, width)];
    if shown > 0 {
        let header = ["POD", "BIT/s", "PROTO", "STATE", "PATH"].map(str::to_owned);
        let ends = ["SOURCE", "DESTINATION"].map(str::to_owned);
        lines.push(line(header, ends, width));
    }
    let flows = view.flows.iter().zip(rates).take(shown);
    lines.extend(flows.map(|(flow, rate)| of_flow(flow, *rate, width)));
    lines.join("\n")
}

fn of_flow(flow: &FlowView, rate: f64, width: usize) -> String {
    let is_counted = flow.sent_bytes.is_some();
    let known = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    let cells = [
        flow_pod(flow),
        if is_counted {
            bits(rate)
        } else {
            "-".to_owned()
        },
        flow.protocol.clone(),
        known(&flow.state),
        known(&flow.path),
    ];
    let ends = [&flow.seen.source, &flow.seen.destination].map(String::clone);
    line(cells, ends, width)
}

/// Lays out a line. Source and destination share what the other columns leave.
fn line(
    [pod, rate, protocol, state, path]: [String; 5],
    [source, destination]: [String; 2],
    width: usize,
) -> String {
    let (pod, protocol) = (shortened(&pod, POD), shortened(&protocol, PROTOCOL));
    let (state, path) = (shortened(&state, STATE), shortened(&path, PATH));
    let first_columns = format!("{pod:<POD$} {rate:>RATE$} {protocol:<PROTOCOL$} ");
    let before = if width >= WITH_STATE {
        format!("{first_columns}{state:<STATE$} {path:<PATH$} ")
    } else {
        first_columns
    };
    let rest = width.saturating_sub(before.chars().count() + 1);
    let first = rest / 2;
    let (source, destination) = (
        shortened(&source, first),
        shortened(&destination, rest - first),
    );
    let text = format!("{before}{source:<first$} {destination}");
    shortened(text.trim_end(), width)
}

#[cfg(test)]
mod tests {
    use api::{EndsView, PodView};

    use super::*;

    fn flow(name: &str, source: &str, destination: &str) -> FlowView {
        FlowView {
            pod: Some(PodView {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
            }),
            protocol: "tcp".to_owned(),
            state: "established".to_owned(),
            path: "offloaded".to_owned(),
            seen: EndsView {
                source: source.to_owned(),
                destination: destination.to_owned(),
            },
            sent_bytes: Some(1),
            ..FlowView::default()
        }
    }

    fn three() -> Vec<FlowView> {
        vec![
            flow("cart", "10.244.0.2:40000", "198.51.100.7:443"),
            FlowView {
                protocol: "udp".to_owned(),
                state: "single".to_owned(),
                path: "stack".to_owned(),
                ..flow(
                    "checkout-frontend-7c9d8b6f5-x2x4z",
                    "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:33000",
                    "[fd00:10:244:1::3]:8080",
                )
            },
            FlowView {
                pod: None,
                protocol: "sctp".to_owned(),
                path: String::new(),
                sent_bytes: None,
                ..flow("", "192.0.2.1:40001", "10.244.0.9:3868")
            },
        ]
    }

    fn view(flows: Vec<FlowView>) -> (FlowsView, Vec<f64>) {
        let rates = (0..flows.len()).map(|index| 1.25e9 / f64::from(1 << index.min(20)));
        let view = FlowsView {
            matching: flows.len() as u64,
            ..FlowsView::default()
        };
        let rates = rates.collect();
        (FlowsView { flows, ..view }, rates)
    }

    fn hundred_and_three() -> Vec<FlowView> {
        let more = (0..100).map(|index| {
            let source = format!("10.244.0.{index}:40000");
            flow(&format!("web-{index}"), &source, "198.51.100.7:443")
        });
        three().into_iter().chain(more).collect()
    }

    #[test]
    fn flows_on_80_and_120_columns_without_flows_with_3_and_with_103() {
        for width in [80, 120] {
            for (name, flows) in [("0", vec![]), ("3", three()), ("103", hundred_and_three())] {
                let (view, rates) = view(flows);
                let shown = screen(&view, &rates, "rate", (width, 12));
                assert!(shown.lines().count() <= 12);
                insta::assert_snapshot!(format!("flows_{width}_{name}_flows"), shown);
            }
        }
    }

    #[test]
    fn flows_fit_a_terminal_of_any_size_and_names_of_pods_have_20_columns_on_80() {
        let (view, rates) = view(hundred_and_three());
        for width in 1..200_u16 {
            for line in screen(&view, &rates, "rate", (width, 9)).lines() {
                assert!(
                    line.chars().count() <= usize::from(width),
                    "{width}: {line}"
                );
            }
        }
        let shown = screen(&view, &rates, "rate", (80, 9));
        let long = shown.lines().nth(3).unwrap();
        let name = long.split(' ').next().unwrap();
        assert_eq!(name.chars().count(), 20, "{long}");
    }
}
