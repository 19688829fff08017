package backup

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// maxRemovals is the number of repositories that a backup may drop although they are most of those of the one before.
const maxRemovals = 2

// checkRemovals lists what was removed since the backup before. It refuses to drop most repositories or most of the
// state, as when the file system of the root or of the state directory is not mounted.
func (b *run) checkRemovals() error {
	return cmp.Or(b.checkGone("repositories", cmp.Or(b.Root, "a root"), isRepository),
		b.checkGone("parts of the state", b.State, isState))
}

func (b *run) checkGone(what, dir string, is func(place string) bool) error {
	had, gone := 0, []string{}
	for place := range b.was.Units {
		if !is(place) {
			continue
		}
		had++
		path := strings.TrimPrefix(place, rootPlace+"/")
		if _, has := b.made.Units[place]; !has && b.made.Links[path] == "" {
			gone = append(gone, path)
		}
	}
	slices.Sort(gone)
	b.report.Removed = append(b.report.Removed, gone...)
	n := len(gone)
	if b.AllowRemovals || n == 0 || n < had && (n <= maxRemovals || 2*n <= had) {
		return nil
	}
	some := strings.Join(gone[:min(n, 3)], ", ")
	if n > 3 {
		some += ", ..."
	}
	return fault.New(fault.Precondition, "%d of the %d %s of the backup of %s are not below %s (%s), and that backup is "+
		"unchanged: look whether it is mounted. If they were removed, use --allow-removals", n, had, what,
		b.was.At.Format(time.RFC3339), dir, some)
}
