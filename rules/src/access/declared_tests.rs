//! The tests that a policy declares.

use super::{
    NamedObject, Policy, PolicyFault, PolicyTest, PolicyWarning, TestAnnotations, Verdict,
    document::named_object, object::ObjectKind,
};
use crate::catalog::{Catalog, ToolTraits};

impl TestAnnotations {
    fn traits(self) -> ToolTraits {
        ToolTraits {
            read_only: self.read_only_hint == Some(true),
            destructive: self.destructive_hint != Some(false),
            open_world: self.open_world_hint != Some(false),
            ..ToolTraits::default()
        }
    }
}

impl Policy {
    /// Returns the tests that cannot run, and those that the policy fails.
    pub(super) fn run_tests(&self, tests: &[PolicyTest]) -> Vec<PolicyFault> {
        let run = |(index, test)| self.run_test(test, &format!("tests[{index}]")).err();
        tests.iter().enumerate().filter_map(run).collect()
    }

    fn run_test(&self, test: &PolicyTest, path: &str) -> Result<(), PolicyFault> {
        let fault = |member: &str, problem: String| PolicyFault {
            path: format!("{path}.{member}"),
            problem,
            is_failed_test: false,
        };
        let named = named_object(&test.method, &test.object)
            .map_err(|(member, problem)| fault(member, problem))?;
        if test.annotations.is_some() && named.kind != ObjectKind::Tool {
            return Err(fault(
                "annotations",
                "is for the method tools/call; leave it out".to_owned(),
            ));
        }
        let decided = self.decided(test, &named, test.annotations.map(TestAnnotations::traits));
        if decided == test.expect {
            return Ok(());
        }
        Err(PolicyFault {
            path: path.to_owned(),
            problem: format!(
                "expects {}, the policy decides {}",
                test.expect.name(),
                decided.name()
            ),
            is_failed_test: true,
        })
    }

    fn decided(
        &self,
        test: &PolicyTest,
        named: &NamedObject,
        traits: Option<ToolTraits>,
    ) -> Verdict {
        self.decide(&test.subject.subject(), named.method, &named.object(traits)).verdict
    }

    /// Returns the tests that passed for a tool without annotations, although the policy decides
    /// otherwise for the tool that the backend lists.
    pub fn tests_of_other_tools(
        &self,
        tests: &[PolicyTest],
        catalog: &Catalog,
    ) -> Vec<PolicyWarning> {
        let warning = |(index, test): (usize, &PolicyTest)| {
            let named = named_object(&test.method, &test.object).ok()?;
            if test.annotations.is_some() || named.kind != ObjectKind::Tool {
                return None;
            }
            let listed = catalog.traits(&named.backend, &named.name)?;
            let decided = self.decided(test, &named, Some(listed));
            (decided != test.expect).then(|| PolicyWarning {
                path: format!("tests[{index}]"),
                problem: format!(
                    "is for a tool without annotations, and the policy decides {} for the tool \
                     that the backend lists; give the annotations of the tool that is meant",
                    decided.name()
                ),
            })
        };
        tests.iter().enumerate().filter_map(warning).collect()
    }
}
