package command

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// examineOrigins reports origins of a running server that get no requests, and mirrors that fail. Mirrors that are
// refused are reported as repositories.
func examineOrigins(ctx context.Context, socket string, hasMirrors bool, r *doctor.Report) {
	notAsked := func(err error) {
		r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Hint, Kind: "not-asked", Subject: socket,
			Text:   "its origins are not known: " + answerOf(err).Error(),
			Advice: "run doctor as root or as the user of the server"})
	}
	var origins []origin.Status
	if err := askServer(ctx, "server", socket, internalv1.AdminWork_ADMIN_WORK_ORIGINS, "", &origins); err != nil {
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
		err := askServer(ctx, "server", socket, internalv1.AdminWork_ADMIN_WORK_MIRRORS, after, &part)
		if connect.CodeOf(err) == connect.CodeNotFound {
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

// askServer has a running process do work that takes it no time, and reads the result into v.
func askServer(ctx context.Context, what, socket string, work internalv1.AdminWork, name string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	return withServer(what, socket, func(c *client.Client) error {
		return runAdmin(ctx, c, &internalv1.RunRequest{Work: work, Name: name}, nil, nil, v)
	})
}
