// Package doctor examines a machine and the repositories below a root for what keeps a server from working well, and
// says for each fault what to do about it. It reads; it changes and creates nothing.
package doctor

import (
	"cmp"
	"slices"
	"sync"
)

// Severity says how bad a finding is.
type Severity string

// Severities of findings.
const (
	Problem Severity = "problem" // something does not work, or will not for long
	Hint    Severity = "hint"    // something could work better
)

// The groups of findings, in the order in which they are shown.
const (
	GroupConfiguration = "configuration"
	GroupServer        = "server"
	GroupRepositories  = "repositories"
	GroupGit           = "git"
	GroupLimits        = "limits"
	GroupCertificates  = "certificates"
	GroupClock         = "clock"
	GroupDisk          = "disk"
	GroupCgroups       = "cgroups"
)

// Groups lists all groups.
var Groups = []string{GroupConfiguration, GroupServer, GroupRepositories, GroupGit, GroupLimits, GroupCertificates,
	GroupClock, GroupDisk, GroupCgroups}

// Finding is one thing that was found.
type Finding struct {
	Group    string   `json:"group"`
	Severity Severity `json:"severity"`
	Kind     string   `json:"kind"`              // what kind of fault it is, a word that stays
	Subject  string   `json:"subject,omitempty"` // a repository's path below the root, a file, a setting
	Text     string   `json:"message"`           // what is wrong
	Advice   string   `json:"advice"`            // what to do
}

// Report is what an examination has found. Safe for concurrent use until it is sorted.
type Report struct {
	mu       sync.Mutex
	Findings []Finding
	Facts    map[string]string // by group: what was looked at, and is there
}

// Add adds a finding.
func (r *Report) Add(f Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Findings = append(r.Findings, f)
}

// Fact says what is there in a group.
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

// Sort puts the findings into the order of groups, problems first, and of subjects.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		byKind := cmp.Or(cmp.Compare(slices.Index(Groups, a.Group), slices.Index(Groups, b.Group)),
			-cmp.Compare(a.Severity, b.Severity),
			cmp.Compare(a.Kind, b.Kind))
		if a.Group == GroupConfiguration { // they come in the order of the file's lines
			return byKind
		}
		return cmp.Or(byKind, cmp.Compare(a.Subject, b.Subject))
	})
}

// Problems counts the findings that are problems.
func (r *Report) Problems() (n int) {
	for _, f := range r.Findings {
		if f.Severity == Problem {
			n++
		}
	}
	return n
}
