//! Network policies, with their number of rules and the containers that they select.

use api::{PoliciesView, PolicyView};
use comfy_table::{Cell, Row};

use super::format::{join, short_id};
use super::table::{TableStyle, number, row, styled_table, text};

/// Renders network policies, one line each. A direction of which a policy says nothing is `-`.
pub(crate) fn policies(view: &PoliciesView, style: TableStyle) -> String {
    if view.policies.is_empty() {
        return style.no_rows("No network policies.");
    }
    let narrow = ["NAME", "INGRESS", "EGRESS", "PODS"];
    let wide = ["SELECTORS", "CONTAINERS"];
    let header: Vec<&str> = narrow
        .into_iter()
        .chain(wide.into_iter().filter(|_| style.wide))
        .collect();
    let rows = view.policies.iter().map(|view| policy(view, style));
    styled_table(&header, rows, style)
}

fn policy(view: &PolicyView, style: TableStyle) -> Row {
    let PolicyView {
        policy,
        container_ids,
    } = view;
    let narrow = [
        text(&policy.name),
        rules(policy.ingress.as_ref().map(Vec::len)),
        rules(policy.egress.as_ref().map(Vec::len)),
        number(container_ids.len()),
    ];
    let wide = [
        text(join(policy.pods.iter().cloned())),
        text(join(container_ids.iter().map(|id| short_id(id)))),
    ];
    row(narrow
        .into_iter()
        .chain(wide.into_iter().filter(|_| style.wide)))
}

/// Returns a cell with the number of rules; 0 for a direction in which nothing is allowed.
fn rules(count: Option<usize>) -> Cell {
    count.map_or_else(|| number("-"), number)
}

#[cfg(test)]
mod tests {
    use api::{EgressRuleSetting, IngressRuleSetting, PolicySetting};

    use super::*;

    fn view() -> PoliciesView {
        let policy = |name: &str, ingress: Option<usize>, egress: Option<usize>| PolicySetting {
            name: name.to_owned(),
            pods: vec!["shop/db-0".to_owned(), "10.1.0.0/28".to_owned()],
            ingress: ingress.map(|count| vec![IngressRuleSetting::default(); count]),
            egress: egress.map(|count| vec![EgressRuleSetting::default(); count]),
        };
        let view = |policy, ids: &[&str]| PolicyView {
            policy,
            container_ids: ids.iter().map(ToString::to_string).collect(),
        };
        PoliciesView {
            policies: vec![
                view(
                    policy("shop/db", Some(12), None),
                    &["0123456789abcdef", "c2"],
                ),
                view(policy("shop/closed", Some(0), Some(1)), &[]),
            ],
            ..PoliciesView::default()
        }
    }

    #[test]
    fn each_network_policy_is_one_line_with_its_rules_and_the_number_of_its_pods() {
        insta::assert_snapshot!(policies(&view(), TableStyle::PLAIN), @r"
        NAME         INGRESS  EGRESS  PODS
        shop/db           12       -     2
        shop/closed        0       1     0
        ");
        let empty = PoliciesView::default();
        assert_eq!(
            policies(&empty, TableStyle::PLAIN),
            "No network policies.\n"
        );
    }

    #[test]
    fn a_wide_list_of_network_policies_has_selectors_and_containers() {
        let wide = TableStyle {
            headers: true,
            wide: true,
        };
        insta::assert_snapshot!(policies(&view(), wide), @r"
        NAME         INGRESS  EGRESS  PODS  SELECTORS              CONTAINERS
        shop/db           12       -     2  shop/db-0,10.1.0.0/28  0123456789ab,c2
        shop/closed        0       1     0  shop/db-0,10.1.0.0/28  -
        ");
    }
}
