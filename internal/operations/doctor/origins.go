package doctor

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// Origins reports origins of a running server that get no requests, and mirrors that fail. Mirrors that are
// refused are reported as repositories.
func Origins(ctx context.Context, ask Ask, hasMirrors bool, r *Report) {
	notAsked := func(err error) {
		r.Add(Finding{Group: GroupServer, Severity: Hint, Kind: "not-asked",
			Text:   "its origins are not known: " + err.Error(),
			Advice: "run doctor as root or as the user of the server"})
	}
	var origins []origin.Status
	if _, err := ask(ctx, "server", internalv1.AdminWork_ADMIN_WORK_ORIGINS, "", &origins); err != nil {
		notAsked(err)
		return
	}
	for _, o := range origins {
		if o.Error != "" {
			r.Add(Finding{Group: GroupServer, Severity: Problem, Kind: "origin-down", Subject: o.Host,
				Text: o.Error, Advice: "test the origin from this machine (docs/how-to/runbook.md)"})
		}
	}
	for after := ""; hasMirrors && len(origins) > 0; {
		var part mirror.ListResult
		known, err := ask(ctx, "server", internalv1.AdminWork_ADMIN_WORK_MIRRORS, after, &part)
		if err != nil {
			notAsked(err)
			return
		}
		if !known {
			return // only the forge is an origin
		}
		for _, s := range part.Mirrors {
			if s.Error == "" || s.Refused || s.Orphan {
				continue
			}
			f := Finding{Group: GroupRepositories, Severity: Hint, Kind: "mirror-failing", Subject: s.Path,
				Text:   "its last update failed: " + s.Error,
				Advice: "test it with packhorse mirror refresh " + ShellWord(s.Path)}
			if s.Stale {
				f.Severity, f.Kind, f.Text = Problem, "mirror-stale", "it is not served, because its updates fail: "+s.Error
			}
			r.Add(f)
		}
		if after = part.Next; after == "" {
			return
		}
	}
}
