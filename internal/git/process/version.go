package process

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Version is the version of a git program: major and minor.
type Version [2]int

func (v Version) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

// Before reports whether v is older than w.
func (v Version) Before(w Version) bool {
	return cmp.Or(cmp.Compare(v[0], w[0]), cmp.Compare(v[1], w[1])) < 0
}

// versionTimeout is the time limit of git version.
const versionTimeout = 5 * time.Second

// VersionOf returns the version of a git program, before there is a Runner. The text is git's own, such as "2.47.3".
func VersionOf(ctx context.Context, program string) (v Version, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "version")
	cmd.Env, cmd.WaitDelay = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}, time.Second
	out, err := cmd.Output()
	if err != nil {
		return v, "", fmt.Errorf("run %s version: %w", program, err)
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "git version ")
	text, _, _ = strings.Cut(text, " ") // "2.39.5 (Apple Git-154)"
	major, rest, _ := strings.Cut(text, ".")
	minor, _, _ := strings.Cut(rest, ".")
	for i, number := range []string{major, minor} {
		if v[i], err = strconv.Atoi(number); err != nil || !ok {
			return v, text, fmt.Errorf("%s version says %.80q, which is not a version of git", program, out)
		}
	}
	return v, text, nil
}
