package e2e

import (
	"fmt"
	"os"
	"slices"
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
- "no" is an operation that the client does not support with any server. The run checks that it also fails with git
  http-backend.

| client | not supported | reason |
|---|---|---|
`

// page renders the rows: one for each client and protocol version, then the reasons.
func page(ran []*client, cells map[*client]map[string]string) string {
	var out strings.Builder
	out.WriteString(clientsIntro + "| client | version | protocol |")
	for _, op := range operations {
		fmt.Fprintf(&out, " %s |", op.name)
	}
	out.WriteString("\n" + strings.Repeat("|---", 3+len(operations)) + "|\n")
	for _, c := range ran {
		fmt.Fprintf(&out, "| %s | %s | %s |%s\n", c.name, c.version, c.protocol, marks(cells[c]))
	}
	out.WriteString(clientsLegend)
	for _, line := range reasons(ran, cells) {
		out.WriteString(line)
	}
	return out.String()
}

// reasons returns a table row for each operation that a client does not support.
func reasons(ran []*client, cells map[*client]map[string]string) []string {
	var rows []string
	for _, c := range ran {
		for _, op := range operations {
			row := fmt.Sprintf("| %s | %s | %s |\n", c.name, op.name, cells[c][op.name])
			if cells[c][op.name] != "ok" && !slices.Contains(rows, row) {
				rows = append(rows, row)
			}
		}
	}
	return rows
}

func marks(cells map[string]string) string {
	var out strings.Builder
	for _, op := range operations {
		mark := "ok"
		if cells[op.name] != "ok" {
			mark = "no"
		}
		fmt.Fprintf(&out, " %s |", mark)
	}
	return out.String()
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
	rows := map[string]string{} // marks by client and protocol
	for line := range strings.Lines(string(text)) {
		if cols := strings.SplitN(strings.TrimSpace(line), "|", 5); len(cols) == 5 {
			rows[strings.TrimSpace(cols[1])+"/"+strings.TrimSpace(cols[3])] = cols[4]
		}
	}
	for _, c := range ran {
		if got, want := rows[c.name+"/"+c.protocol], marks(cells[c]); got != want {
			t.Errorf("docs/reference/clients.md: %s in protocol %s has%q, want%q: run make clients-doc", c.name, c.protocol,
				got, want)
		}
	}
	for _, line := range reasons(ran, cells) {
		if !strings.Contains(string(text), line) {
			t.Errorf("docs/reference/clients.md has no line %q: run make clients-doc", line)
		}
	}
}
