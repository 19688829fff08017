// Package doctor examines a server, its machine and its repositories for problems, and gives a remedy for each. It only
// reads, except that it writes a few objects below probe/ in a store and removes them.
package doctor

import (
	"cmp"
	"slices"
	"sync"
)

// Severity is the importance of a finding.
type Severity string

// Severities of findings.
const (
	Problem Severity = "problem" // something does not work, or soon will not
	Hint    Severity = "hint"    // something could work better
)

// The groups of findings, in their order in a report.
const (
	GroupConfiguration = "configuration"
	GroupServer        = "server"
	GroupStore         = "store"
	GroupNodes         = "nodes"
	GroupRepositories  = "repositories"
	GroupGit           = "git"
	GroupLimits        = "limits"
	GroupCertificates  = "certificates"
	GroupClock         = "clock"
	GroupDisk          = "disk"
)

// Groups lists all groups.
var Groups = []string{GroupConfiguration, GroupServer, GroupStore, GroupNodes, GroupRepositories, GroupGit, GroupLimits,
	GroupCertificates, GroupClock, GroupDisk}

// Finding is one problem or hint.
type Finding struct {
	Group    string   `json:"group"`
	Severity Severity `json:"severity"`
	Kind     string   `json:"kind"`              // stable name of the kind of finding
	Subject  string   `json:"subject,omitempty"` // a repository's path below the root, a file, a setting
	Text     string   `json:"message"`           // the problem
	Advice   string   `json:"advice"`            // the remedy
}

// Report is the result of an examination. It is safe for concurrent use until it is sorted.
type Report struct {
	mu       sync.Mutex
	Findings []Finding
	Facts    map[string]string // the examined things and their states, by group
}

// Add adds a finding.
func (r *Report) Add(f Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Findings = append(r.Findings, f)
}

// Fact adds a fact to a group.
func (r *Report) Fact(group, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Facts == nil {
		r.Facts = map[string]string{}
	}
	if before := r.Facts[group]; before != "" {
		text = before + "; " + text
	}
	r.Facts[group] = text
}

// Sort sorts the findings by group, severity (problems first), kind and subject.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		byKind := cmp.Or(cmp.Compare(slices.Index(Groups, a.Group), slices.Index(Groups, b.Group)),
			-cmp.Compare(a.Severity, b.Severity),
			cmp.Compare(a.Kind, b.Kind))
		if a.Group == GroupConfiguration { // they are in the order of the file's lines
			return byKind
		}
		return cmp.Or(byKind, cmp.Compare(a.Subject, b.Subject))
	})
}

// Problems returns the number of problems.
func (r *Report) Problems() (n int) {
	for _, f := range r.Findings {
		if f.Severity == Problem {
			n++
		}
	}
	return n
}
