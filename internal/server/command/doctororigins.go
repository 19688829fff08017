package command

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
)

// examineOrigins reports origins of a running server that get no requests, and mirrors that fail. Mirrors that are
// refused are reported as repositories.
func examineOrigins(ctx context.Context, socket string, hasMirrors bool, r *doctor.Report) {
	ask := func(path string, v any) error {
		ctx, cancel := context.WithTimeout(ctx, adminapi.Timeout)
		defer cancel()
		return askAdmin(ctx, "server", socket, http.MethodGet, path, v)
	}
	notAsked := func(err error) {
		r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Hint, Kind: "not-asked", Subject: socket,
			Text: "its origins are not known: " + err.Error(), Advice: "run doctor as root or as the user of the server"})
	}
	var origins []origin.Status
	if err := ask("/origins", &origins); err != nil {
		notAsked(err)
		return
	}
	for _, o := range origins {
		if o.Error != "" {
			r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Problem, Kind: "origin-down", Subject: o.Host,
				Text: o.Error, Advice: "test the origin from this machine (docs/how-to/runbook.md)"})
		}
	}
	for after := ""; hasMirrors && len(origins) > 0; {
		var part mirror.ListResult
		err := ask("/mirrors?after="+url.QueryEscape(after), &part)
		if e, ok := errors.AsType[*refusal](err); ok && e.status == http.StatusNotFound {
			return // only the forge is an origin
		}
		if err != nil {
			notAsked(err)
			return
		}
		for _, s := range part.Mirrors {
			if s.Error == "" || s.Refused || s.Orphan {
				continue
			}
			f := doctor.Finding{Group: doctor.GroupRepositories, Severity: doctor.Hint, Kind: "mirror-failing", Subject: s.Path,
				Text:   "its last update failed: " + s.Error,
				Advice: "test it with packhorse mirror refresh " + doctor.ShellWord(s.Path)}
			if s.Stale {
				f.Severity, f.Kind, f.Text = doctor.Problem, "mirror-stale", "it is not served, because its updates fail: "+s.Error
			}
			r.Add(f)
		}
		if after = part.Next; after == "" {
			return
		}
	}
}
