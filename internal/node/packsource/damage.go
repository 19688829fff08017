package packsource

import (
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// packError returns an error of the same kind as err, with a message that a client may see. If git could not read an
// object, the message names the object and the kind is Corrupt, because another replica may have the object.
func packError(err error) error {
	e := &fault.Error{
		Kind: fault.KindOf(err), Msg: "the pack could not be made", RetryAfter: fault.RetryAfter(err),
		CallerLimit: fault.IsCallerLimit(err), Err: err,
	}
	if e.Kind != fault.Internal {
		return e
	}
	if id, state := unreadable(err.Error()); id != "" {
		e.Kind = fault.Corrupt
		e.Msg += ": object " + id + " is " + state + " in the repository on the server; tell its administrator"
	}
	return e
}

var (
	// objectName matches an object ID in git's messages: 40 or 64 digits, or the path of a loose object.
	objectName = regexp.MustCompile(`(?:^|[^0-9a-f])([0-9a-f]{2}/(?:[0-9a-f]{62}|[0-9a-f]{38})|[0-9a-f]{64}|[0-9a-f]{40})(?:[^0-9a-f]|$)`)

	states = []struct {
		name  string
		words *regexp.Regexp
	}{
		{"corrupt",
			regexp.MustCompile(`corrupt|is empty|inflate|mismatch|unable to unpack|unable to parse|garbage at end`)},
		{"missing", regexp.MustCompile(`missing`)},
		{"missing or corrupt", regexp.MustCompile(`(?i)bad (?:tree )?object|(?:unable|failed) to (?:read|get|load|find)|(?:could not|cannot be) (?:read|get)`)},
	}
)

// unreadable returns the object that git could not read. It searches git's messages, which are separated by "; ". It
// returns "" if they name no such object.
func unreadable(messages string) (id, state string) {
	for _, s := range states {
		for message := range strings.SplitSeq(messages, "; ") {
			m := objectName.FindStringSubmatch(message)
			if m != nil && !strings.Contains(message, "pack-"+m[1]) && s.words.MatchString(message) {
				return strings.ReplaceAll(m[1], "/", ""), s.name
			}
		}
	}
	return "", ""
}
