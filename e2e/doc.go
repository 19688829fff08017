// Package e2e tells stories about the built binary and real git clients: what a user, an operator and an attacker do
// and see. The stories are scripts in testdata; see CONTRIBUTING.md for the commands that they have. There is nothing
// here but tests.
package e2e
