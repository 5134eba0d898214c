use crate::config::ConfigError;

/// The controllers there are, with upstream's other names for them.
const KNOWN: [(&str, &[&str]); 3] = [
    ("route", &["node-route-controller"]),
    ("ipam", &[]),
    ("pod-cidr", &["node-ipam-controller", "nodeipam"]),
];

/// Those that `*` does not mean: whoever has another one of the kind must not get a second.
const BY_NAME: [&str; 2] = ["ipam", "pod-cidr"];

/// Which controllers run: `*`, `name`, `-name`; the first that fits decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection(Vec<(bool, Option<&'static str>)>);

impl Selection {
    pub(crate) fn parse(words: &[String]) -> Result<Self, ConfigError> {
        let mut rules = Vec::new();
        for word in words {
            let (on, name) = match word.strip_prefix('-') {
                Some(name) => (false, name),
                None => (true, word.as_str()),
            };
            let name = if name == "*" {
                None
            } else {
                Some(known(name)?)
            };
            rules.push((on, name));
        }
        Ok(Self(rules))
    }

    /// Of a manager that has controllers that we do not know.
    pub(crate) fn of_others(words: &[String]) -> Self {
        let is_known = |word: &&String| {
            let name = word.strip_prefix('-').unwrap_or(word);
            name == "*" || known(name).is_ok()
        };
        let ours: Vec<String> = words.iter().filter(is_known).cloned().collect();
        Self::parse(&ours).unwrap_or(Self(Vec::new()))
    }

    /// Whether anything else runs.
    pub(crate) fn includes_others(&self, controller: &str) -> bool {
        let mut others = KNOWN.iter().filter(|(name, _)| *name != controller);
        others.any(|(name, _)| self.includes(name))
    }

    pub(crate) fn includes(&self, controller: &str) -> bool {
        let by_name = self.0.iter().find(|(_, name)| *name == Some(controller));
        let mut stars = self.0.iter();
        let by_star = stars.find(|(_, name)| name.is_none() && !BY_NAME.contains(&controller));
        by_name.or(by_star).is_some_and(|(on, _)| *on)
    }
}

fn known(name: &str) -> Result<&'static str, ConfigError> {
    let found = KNOWN
        .iter()
        .find(|(own, others)| *own == name || others.contains(&name));
    found.map(|(own, _)| *own).ok_or_else(|| {
        let names: Vec<&str> = KNOWN.iter().map(|(own, _)| *own).collect();
        ConfigError::Flag(format!(
            "--controllers: there is no {name:?}; there are {}",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn includes(words: &str) -> bool {
        let words: Vec<String> = words.split(',').map(str::to_owned).collect();
        Selection::parse(&words).unwrap().includes("route")
    }

    #[test]
    fn a_name_decides_before_the_star_wherever_it_stands() {
        assert!(includes("*"));
        assert!(!includes("*,-route"));
        assert!(!includes("-node-route-controller,*"));
        assert!(includes("route"));
        assert!(!includes("-*"));
    }

    #[test]
    fn names_of_other_managers_are_passed_over() {
        let words = ["*", "-route", "-service"].map(str::to_owned);
        assert!(!Selection::of_others(&words).includes("route"));
        let words = ["-service", "*"].map(str::to_owned);
        assert!(Selection::of_others(&words).includes("route"));
    }

    #[test]
    fn controllers_of_addresses_run_only_if_they_are_named() {
        let words = |text: &str| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        let star = Selection::parse(&words("*")).unwrap();
        assert!(!star.includes("ipam") && !star.includes("pod-cidr"));
        let named = Selection::parse(&words("*,ipam,nodeipam")).unwrap();
        assert!(named.includes("ipam") && named.includes("pod-cidr") && named.includes("route"));
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Selection::parse(&["rout".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("there are route"), "{error}");
    }
}
