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

Every change on the main branch is held to these git clients: each operation runs against Packhorse, and the refs, objects and
shallow boundary that come of it are compared with those of a clone that git makes by file path; git fsck has to be content. The versions
are those of the run that wrote this page. "make clients" installs the clients and runs the matrix.

`

const clientsLegend = `
- **fetch**: commits, a merge, a branch and two tags are new. **shallow**: depth 3; **deepen**: from there to 7. **partial**: blob:none.
  **tags**: all of them into a clone of one branch. **2,000 refs** and **SHA-256**: listing and cloning such repositories.
- **push**: main moves by commits with a merge, and a branch is new; over HTTP with a token, by SSH with a key. With git-lfs installed, its
  hook before a push finds that there is no LFS here.
- Each client also clones a repository that not everybody may read, with a token as the password of its URL, and where it runs ssh (git,
  dulwich) with a key; with wrong ones it fails.
- "no" is what the client cannot do with any server; that it fails with git http-backend, too, is part of the run:

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

// reasons explains what clients cannot do, with one line for each client that has limits.
func reasons(ran []*client, cells map[*client]map[string]string) []string {
	var names []string
	told := map[string][]string{}
	for _, c := range ran {
		for _, op := range operations {
			reason := fmt.Sprintf("%s (%s)", op.name, cells[c][op.name])
			if cells[c][op.name] == "ok" || slices.Contains(told[c.name], reason) {
				continue
			}
			if told[c.name] == nil {
				names = append(names, c.name)
			}
			told[c.name] = append(told[c.name], reason)
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("  - %s: %s\n", name, strings.Join(told[name], ", "))
	}
	return names
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

// checkPage holds docs/reference/clients.md to the run, whatever the clients' versions; with -update it writes it.
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
			t.Errorf("docs/reference/clients.md says of %s in protocol %s:%q\nand the run says:%q\nrun make clients-doc", c.name,
				c.protocol, got, want)
		}
	}
	for _, line := range reasons(ran, cells) {
		if !strings.Contains(string(text), line) {
			t.Errorf("docs/reference/clients.md does not say: %srun make clients-doc", strings.TrimLeft(line, " "))
		}
	}
}
