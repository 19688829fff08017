package replog

import (
	"fmt"
	"strings"
)

// Setting is one value of the Git configuration (git-config(1)). A key can have several, and their order matters. Its
// section and its last part are in lower case.
type Setting struct{ Key, Value string }

// allowedSettings lists the sections and keys that repositories in a store can have: those that change the answers to
// clients. Others concern files of the repository, or programs on the machine. restore.sh has the same list.
var allowedSettings = map[string]bool{
	"receive": true, "transfer": true, "uploadpack": true, "uploadpackfilter": true, "lsrefs": true,
	"bundle": true, "http.receivepack": true, "http.uploadpack": true, "repack.usedeltabaseoffset": true,
	"core.disambiguate": true, "lfs.quota": true, "lfs.grace": true, "gitweb.category": true,
	"gitweb.description": true, "gitweb.owner": true, "packhorse.archived": true, "packhorse.label": true,
	"packhorse.purged": true, "packhorse.purgedlfs": true, "packhorse.purging": true, "packhorse.quota": true,
	"packhorse.readonly": true, "packhorse.unlisted": true,
}

// deniedSettings lists keys of allowed sections that are not allowed.
var deniedSettings = map[string]bool{
	"receive.certnonceseed":      true, // a secret
	"receive.fsck.skiplist":      true, // names a file
	"uploadpack.packobjectshook": true, // names a program
}

// IsAllowed reports whether a repository in a store can have the setting. Others have no effect: they are not written
// into the configuration that Git reads.
func (s Setting) IsAllowed() bool {
	section, _, _ := strings.Cut(s.Key, ".")
	return (allowedSettings[section] || allowedSettings[s.Key]) && !deniedSettings[s.Key]
}

// Split returns the parts of the key: "x", "a.b" and "y" of "x.a.b.y". isNested reports whether it has a subsection.
func (s Setting) Split() (section, subsection, name string, isNested bool) {
	section, name, _ = strings.Cut(s.Key, ".")
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		subsection, name, isNested = name[:i], name[i+1:], true
	}
	return section, subsection, name, isNested
}

// validate checks that the setting has the form in which Git lists it. A part of a key cannot end its line or its
// brackets in a configuration file.
func (s Setting) validate() error {
	const letters, others = "abcdefghijklmnopqrstuvwxyz", "0123456789-"
	section, subsection, name, _ := s.Split()
	if section == "" || strings.Trim(section, letters+others) != "" ||
		strings.ContainsAny(subsection, "\n\x00") ||
		name == "" || !strings.Contains(letters, name[:1]) || strings.Trim(name, letters+others) != "" {
		return fmt.Errorf("invalid key %.80q of the configuration", s.Key)
	}
	if strings.Contains(s.Value, "\x00") {
		return fmt.Errorf("invalid value %.80q of %.80q in the configuration", s.Value, s.Key)
	}
	return nil
}
