// Package e2e tests the built binary with real git clients, from the view of a user, an operator and an attacker.
// Scripts in testdata are its stories. CONTRIBUTING.md describes their commands. The package contains only tests.
package e2e
