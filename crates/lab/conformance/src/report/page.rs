//! The report as one self-contained HTML page.

use std::fmt::Write as _;

use crate::{
    Outcome,
    outcome::{Claim, Measure, Table, Verdict},
    report::{escape::escaped, figure, markdown, plot},
};

const STYLE: &str = include_str!("page.css");

/// All outcomes, one section with plots for each.
pub(crate) fn of(outcomes: &[Outcome]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Weft compared with the programs it replaces</title>\n<style>\n{STYLE}</style>\n\
         <h1>Weft compared with the programs it replaces</h1>\n"
    );
    page += &verdict(outcomes);
    for outcome in outcomes {
        page += &section(outcome);
    }
    page
}

/// Numbers of targets met, best achievable and missed.
fn verdict(outcomes: &[Outcome]) -> String {
    let claims = || outcomes.iter().flat_map(|outcome| &outcome.claims);
    let count = |wanted| {
        let verdicts = claims().filter_map(Claim::verdict);
        verdicts.filter(|verdict| *verdict == wanted).count()
    };
    let verdicts = [Verdict::Met, Verdict::BestAchievable, Verdict::Missed];
    let [met, nearly, missed] = verdicts.map(count);
    if met + nearly + missed == 0 {
        return "<p class=\"verdict\">There are no targets at these sizes.</p>\n".to_owned();
    }
    let mut text = format!("<p class=\"verdict\">{met} targets met");
    if nearly > 0 {
        let label = Verdict::BestAchievable.label();
        let _ = write!(text, ", {nearly} {label}");
    }
    if missed > 0 {
        let _ = write!(text, ", <b class=\"missed\">{missed} missed</b>");
    }
    text + ".</p>\n"
}

fn section(outcome: &Outcome) -> String {
    let mut text = format!("<section><h2>{}</h2>\n", escaped(&outcome.title));
    let _ = writeln!(text, "<p>{}</p>", escaped(&outcome.method));
    let _ = writeln!(
        text,
        "<p class=\"from\"><code>{}</code> on {}; {}</p>",
        escaped(&outcome.command),
        escaped(&outcome.machine),
        escaped(&outcome.versions.join(", "))
    );
    text += &claims(&outcome.claims);
    text += "<div class=\"plots\">\n";
    for plot in plot::all(outcome) {
        text += &plot;
    }
    text += "</div>\n";
    if !outcome.measures.is_empty() {
        text += &table(outcome);
    }
    text.extend(outcome.tables.iter().map(texts));
    if !outcome.notes.is_empty() {
        text += "<ul>";
        for note in &outcome.notes {
            let _ = write!(text, "<li>{}</li>", escaped(note));
        }
        text += "</ul>\n";
    }
    text + "</section>\n"
}

fn claims(claims: &[Claim]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    let mut text = "<table><tr><th>ratio<th>measured<th>target<th></tr>\n".to_owned();
    for claim in claims {
        let verdict = claim.verdict().map_or("", Verdict::label);
        let class = match claim.verdict() {
            None => "",
            Some(Verdict::Missed) => "missed",
            Some(Verdict::Met | Verdict::BestAchievable) => "held",
        };
        let _ = writeln!(
            text,
            "<tr><td>{}<td class=\"number\">{}<td class=\"number\">{}<td class=\"{class}\">{verdict}</tr>",
            escaped(&claim.name),
            figure::ratio(claim.ratio),
            markdown::target(claim.target)
        );
    }
    text + "</table>\n"
}

fn table(outcome: &Outcome) -> String {
    let mut text = "<details><summary>All figures</summary><table><tr><th><th>".to_owned();
    for arm in &outcome.arms {
        let _ = write!(text, "<th>{}", escaped(arm));
    }
    text += "</tr>\n";
    for measure in &outcome.measures {
        text += &row(measure, &outcome.arms);
    }
    text + "</table></details>\n"
}

fn texts(table: &Table) -> String {
    let mut text = format!(
        "<details><summary>{}</summary><table><tr>",
        escaped(&table.title)
    );
    for column in &table.columns {
        let _ = write!(text, "<th>{}", escaped(column));
    }
    text += "</tr>\n";
    for row in &table.rows {
        text += "<tr>";
        for cell in row {
            let _ = write!(text, "<td>{}", escaped(cell));
        }
        text += "</tr>\n";
    }
    text + "</table></details>\n"
}

fn row(measure: &Measure, arms: &[String]) -> String {
    let mut text = format!(
        "<tr><td>{}<td>{}",
        escaped(&measure.title()),
        escaped(&measure.unit)
    );
    for arm in arms {
        let _ = write!(text, "<td class=\"number\">{}", measure.figure(arm));
    }
    text + "</tr>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Target;

    #[test]
    fn a_page_shows_figures_plots_and_what_was_missed_and_nothing_becomes_markup() {
        let mut outcome = Outcome::new("proxy", "<Proxies>", &["kube-proxy", "weft"]);
        for (size, peer) in [(1000, 50.0), (5000, 300.0)] {
            outcome.add("one slice", Some(size), "ms", "kube-proxy", peer);
            outcome.add("one slice", Some(size), "ms", "weft", 2.0);
        }
        outcome.add("memory", None, "MB", "weft", 40.0);
        outcome.add("mistakes", None, "", "weft", 0.0);
        let arms = ["kube-proxy", "weft"];
        outcome.claim("one slice", Some(5000), arms, Some(Target::AtLeast(20.0)));
        outcome.claim("one slice", Some(1000), arms, Some(Target::AtLeast(30.0)));
        let nearly = Target::BestAchievable {
            wanted: 30.0,
            attainable: 28.0,
        };
        outcome.claim("one slice", Some(1000), arms, Some(nearly));
        let page = of(&[outcome]);
        assert!(
            page.contains("1 targets met, 1 best achievable, <b class=\"missed\">1 missed</b>")
        );
        assert!(page.contains("&lt;Proxies&gt;") && !page.contains("<Proxies>"));
        assert_eq!(
            page.matches("<svg").count(),
            2,
            "a plot by size and one bar, and none of nothing"
        );
        assert!(page.contains("150 ×"));
    }
}
