package packsource

import (
	"errors"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Git's messages about unreadable objects become an error that names an object, and no path of the server.
func TestUnreadableObjects(t *testing.T) {
	t.Parallel()
	const id, other = "0123456789abcdef0123456789abcdef01234567", "76543210fedcba9876543210fedcba9876543210"
	long := strings.Repeat("0f", 32)
	for text, want := range map[string]string{
		"exit 128: error: object file /srv/git/a.git/objects/01/" + id[2:] + " is empty; fatal: loose object " + id +
			" (stored in /srv/git/x) is corrupt": id + " is corrupt",
		"exit 128: fatal: missing blob object '" + id +
			"'": id + " is missing",
		"exit 128: fatal: unable to read " +
			id: id + " is missing or corrupt",
		"exit 128: error: Could not read " + id +
			"; fatal: revision walk setup failed": id + " is missing or corrupt",
		"exit 128: fatal: packed object " + other + " (stored in ./objects/pack/pack-" + id +
			".pack) is corrupt": other + " is corrupt",
		"exit 128: error: unable to unpack " + long + " header; fatal: loose object " + long +
			" (stored in x) is corrupt": long + " is corrupt",
		"exit 128: fatal: bad tree object " +
			id: id + " is missing or corrupt",
		"exit 128: error: inflate: data stream error (unknown)": "",
		"exit 128: error: wrong index v2 file size in ./objects/pack/pack-" + id +
			".idx": "",
		"exit 1": "",
	} {
		err := packError(&fault.Error{Kind: fault.Internal, Msg: "git pack-objects failed", Err: errors.New(text)})
		kind := fault.Corrupt
		if want == "" {
			kind = fault.Internal
		}
		if got := fault.Message(err); !fault.Is(err, kind) || !strings.HasPrefix(got, "the pack could not be made") ||
			!strings.Contains(got, want) || strings.Contains(got, "/") {
			t.Errorf("%q: %v, %q", text, fault.KindOf(err), got)
		}
	}
	if err := packError(fault.Wrap(fault.Deadline, "too long",
		errors.New("fatal: unable to read "+id))); fault.Message(err) != "the pack could not be made" ||
		!fault.Is(err, fault.Deadline) {
		t.Errorf("%v", err)
	}
}
