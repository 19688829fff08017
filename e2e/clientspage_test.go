package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const clientsPage = "../docs/reference/clients.md"

const clientsIntro = `# Clients

<!-- Written by "make clients-doc" from a run of the matrix; do not edit. -->

Every change on the main branch is tested with these git clients. Each operation runs against Packhorse. The resulting
refs, objects and shallow boundary must equal those of a clone that git makes from the file path, and git fsck must find
no error. The versions are those of the run that wrote this page. "make clients" installs the clients and runs the
tests.

The operations are ls-remote, clone, fetch, after a push, 30 pushes, shallow, deepen, partial, one branch, tags, empty,
2,000 refs, SHA-256, push, and push by SSH.

`

const clientsLegend = `
- **fetch**: new commits, a merge, a branch and two tags. **after a push**: a clone whose pack is composed from the one
  before the push. **30 pushes**: a clone after git pushed 30 thin packs, with other clones in between.
  **shallow**: depth 3. **deepen**: from depth 3 to 7. **partial**: blob:none. **tags**: all tags into a clone of one
  branch. **2,000 refs** and **SHA-256**: list and clone such repositories.
- **push**: main moves by commits with a merge, and a branch is new. It uses HTTP with a token, and SSH with a key. With
  git-lfs, its pre-push hook asks for file locks.
- Each client also clones a repository with restricted access. It uses a token as the password in the URL, and with ssh
  (git, dulwich) a key. With wrong credentials it fails.
- Operations in the last column are those that the client does not support with any server. The run checks that they
  also fail with git http-backend.
`

// page renders a row for each client and protocol version.
func page(ran []*client, cells map[*client]map[string]string) string {
	var out strings.Builder
	out.WriteString(clientsIntro + "| client | version | protocol | not supported |\n|---|---|---|---|\n")
	for _, c := range ran {
		fmt.Fprintf(&out, "| %s | %s | %s |%s\n", c.name, c.version, c.protocol, unsupported(cells[c]))
	}
	out.WriteString(clientsLegend)
	return out.String()
}

// unsupported returns the last cell of a client's row: the operations that it does not support, by reason.
func unsupported(cells map[string]string) string {
	var reasons []string
	names := map[string][]string{}
	for _, op := range operations {
		if reason := cells[op.name]; reason != "ok" {
			if names[reason] == nil {
				reasons = append(reasons, reason)
			}
			names[reason] = append(names[reason], op.name)
		}
	}
	for i, reason := range reasons {
		reasons[i] = strings.Join(names[reason], ", ") + ": " + reason
	}
	return strings.TrimRight(" "+strings.Join(reasons, ". "), " ") + " |"
}

// checkPage compares docs/reference/clients.md with the run, except for the clients' versions. With -update it writes
// the page.
func checkPage(t *testing.T, ran []*client, cells map[*client]map[string]string) {
	if *update {
		if err := os.WriteFile(clientsPage, []byte(page(ran, cells)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(clientsPage)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(text), clientsIntro) || !strings.Contains(string(text), clientsLegend) {
		t.Errorf("docs/reference/clients.md differs from the output of this test: run make clients-doc")
	}
	rows := map[string]string{} // the last cell by client and protocol
	for line := range strings.Lines(string(text)) {
		if cols := strings.SplitN(strings.TrimSpace(line), "|", 5); len(cols) == 5 {
			rows[strings.TrimSpace(cols[1])+"/"+strings.TrimSpace(cols[3])] = cols[4]
		}
	}
	for _, c := range ran {
		if got, want := rows[c.name+"/"+c.protocol], unsupported(cells[c]); got != want {
			t.Errorf("docs/reference/clients.md: %s in protocol %s has%q, want%q: run make clients-doc", c.name, c.protocol,
				got, want)
		}
	}
}
