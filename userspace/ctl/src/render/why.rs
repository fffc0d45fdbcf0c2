//! Renders explanations: one decision a line, then the outcome and what to do.

use std::fmt::Write as _;

use api::{WhyLeg, WhyStep, WhyView};

/// Renders an explanation.
pub(crate) fn why(view: &WhyView) -> String {
    let mut text = String::new();
    leg(&mut text, "Packet", &view.request);
    if let Some(answer) = &view.answer {
        text.push('\n');
        leg(&mut text, "Answer", answer);
    }
    text.push('\n');
    result(&mut text, view);
    for note in &view.notes {
        add(&mut text, "", format_args!("Note: {note}."));
    }
    text
}

fn leg(text: &mut String, title: &str, leg: &WhyLeg) {
    let WhyLeg {
        protocol, packet, ..
    } = leg;
    add(
        text,
        "",
        format_args!(
            "{title}: {protocol} {} -> {}",
            packet.source, packet.destination
        ),
    );
    let width = |of: fn(&WhyStep) -> &str| {
        let widths = leg.steps.iter().map(|step| of(step).chars().count());
        widths.max().unwrap_or(0)
    };
    let (at, decision) = (width(|step| &step.at), width(|step| &step.decision));
    for step in &leg.steps {
        let mark = if step.ends { "=>" } else { "  " };
        add(
            text,
            mark,
            format_args!(
                " {:at$}  {:decision$}  {}",
                step.at, step.decision, step.text
            ),
        );
    }
}

fn result(text: &mut String, view: &WhyView) {
    let answer = view.answer.as_ref();
    let failed = [Some(&view.request), answer]
        .into_iter()
        .flatten()
        .find(|leg| !matches!(leg.outcome.as_str(), "pod" | "node" | "leaves"));
    match failed {
        None if view.passes => {
            add(
                text,
                "",
                format_args!("Result: passes: {}.", view.request.text),
            );
        }
        None => add(text, "", format_args!("Result: {}.", view.request.text)),
        Some(leg) => {
            let which = if answer == Some(leg) { "answer: " } else { "" };
            add(text, "", format_args!("Result: {which}{}.", leg.text));
            if !leg.advice.is_empty() {
                add(text, "  ", format_args!("{}", leg.advice));
            }
        }
    }
    for leg in [Some(&view.request), answer].into_iter().flatten() {
        for doubt in &leg.doubts {
            add(text, "", format_args!("Unless: {doubt} drops it."));
        }
    }
}

fn add(text: &mut String, indent: &str, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{indent}{line}").expect("a String takes every text");
}

#[cfg(test)]
mod tests {
    use api::EndsView;

    use super::*;

    fn step(at: &str, decision: &str, text: &str) -> WhyStep {
        WhyStep {
            at: at.to_owned(),
            decision: decision.to_owned(),
            text: text.to_owned(),
            ends: decision == "delivery" || text.starts_with("dropped"),
        }
    }

    fn ends(source: &str, destination: &str) -> EndsView {
        EndsView {
            source: source.to_owned(),
            destination: destination.to_owned(),
        }
    }

    fn passing() -> WhyView {
        let packet = ends("10.88.0.2:40123", "198.51.100.7:443");
        WhyView {
            passes: true,
            request: WhyLeg {
                protocol: "tcp".to_owned(),
                arrived: packet.clone(),
                packet,
                steps: vec![
                    step(
                        "pod default/web",
                        "neighbour",
                        "sends 198.51.100.7 to its gateway 10.88.0.1",
                    ),
                    step(
                        "from_pod@veth1",
                        "sender",
                        "MAC address and 10.88.0.2 are the pod's",
                    ),
                    step("eth0", "delivery", "leaves by eth0 to 192.0.2.254"),
                ],
                outcome: "leaves".to_owned(),
                text: "it leaves by eth0 to 192.0.2.254".to_owned(),
                doubts: vec!["policy DROP of chain FORWARD of table ip filter".to_owned()],
                ..WhyLeg::default()
            },
            answer: Some(WhyLeg {
                protocol: "tcp".to_owned(),
                packet: ends("198.51.100.7:443", "192.0.2.1:40123"),
                steps: vec![step("veth1", "delivery", "pod default/web receives it")],
                outcome: "pod".to_owned(),
                text: "pod default/web receives it".to_owned(),
                ..WhyLeg::default()
            }),
            ..WhyView::default()
        }
    }

    #[test]
    fn an_explanation_of_a_packet_that_passes_shows_both_directions() {
        insta::assert_snapshot!(why(&passing()));
    }

    #[test]
    fn an_explanation_of_a_dropped_packet_ends_with_reason_and_advice() {
        let mut view = passing();
        view.passes = false;
        view.answer = None;
        view.request.doubts.clear();
        view.request.steps[1] = step("from_pod@veth1", "sender", "dropped as spoofed-address: …");
        view.request.steps.truncate(2);
        view.request.outcome = "dropped".to_owned();
        view.request.text = "from_pod@veth1 drops it as spoofed-address".to_owned();
        view.request.reason = Some("spoofed-address".to_owned());
        view.request.advice = "Find out which address the pod added or forges.".to_owned();
        view.notes.push("the tables changed".to_owned());
        insta::assert_snapshot!(why(&view));
    }
}
