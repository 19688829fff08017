package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func resolveCommand(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resolve REPO [REVISION...]",
		Short: "Print the object IDs of revisions",
		Long: `Resolve prints the object IDs of revisions, as git rev-parse does: full or abbreviated object IDs, names of refs, or HEAD,
followed by any of ^{TYPE}, ^{}, ~N and ^N. Without a revision it resolves HEAD. Of several revisions, those that do not
exist are printed as "-".

It asks the running server of --root over the socket in its state directory. If none runs, it reads the repositories
itself. With --node it asks a storage node.`,
		Example: `  packhorse resolve team/app main --root /srv/git
  packhorse resolve team/app v1.0^{commit} main~3 --json --node 127.0.0.1:9100`,
		Annotations: map[string]string{"url": "ask the public API, as in curl 'https://HOST/-/api/v1/resolve?repo=R&rev=V'"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("which repository? Name it, as in packhorse resolve team/app main")
			}
			return nil
		},
	}
	to := &nodeFinder{target: target{env: env}}
	to.addFlags(cmd.Flags(), true)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		revisions := args[1:]
		if len(revisions) == 0 {
			revisions = []string{""}
		}
		var all githttp.ResolveResponse
		err := to.read(cmd.Context(), func(node *client.Client) (err error) {
			all, err = resolveAt(cmd.Context(), node, args[0], revisions)
			return answerOf(err)
		})
		if err != nil {
			return err
		}
		return printResolved(cmd.OutOrStdout(), all, *asJSON)
	}
	return cmd
}

// printResolved prints the results. It returns the errors of revisions that could not be resolved.
func printResolved(w io.Writer, all githttp.ResolveResponse, asJSON bool) error {
	var failed []error
	var lines strings.Builder
	for _, r := range all.Results {
		switch {
		case r.Error == nil:
			fmt.Fprintln(&lines, r.ID)
		case len(all.Results) > 1:
			fmt.Fprintln(&lines, "-")
		}
		if r.Error != nil {
			failed = append(failed, errors.New(r.Error.Message))
		}
	}
	err := errors.Join(failed...)
	if !asJSON {
		_, writeErr := io.WriteString(w, lines.String())
		return errors.Join(writeErr, err)
	}
	if len(all.Results) == 1 {
		return errors.Join(encodeJSON(w, all.Results[0]), err)
	}
	return errors.Join(encodeJSON(w, all), err)
}

// resolveAt resolves revisions on a node.
func resolveAt(ctx context.Context, node *client.Client, repository string,
	revisions []string) (all githttp.ResolveResponse, err error) {
	request := &packhorsev1.ResolveRevisionsRequest{}
	for _, revision := range revisions {
		request.Revisions = append(request.Revisions, &packhorsev1.Revision{Repository: repository, Revision: revision})
	}
	answer, err := node.Refs().ResolveRevisions(ctx, connect.NewRequest(request))
	if err != nil {
		return all, err
	}
	results := answer.Msg.GetResults()
	if len(results) != len(revisions) {
		return all, fmt.Errorf("invalid response of the node: %d results for %d revisions", len(results), len(revisions))
	}
	for i, r := range results {
		resolved := githttp.ResolveResult{RevisionQuestion: gateway.RevisionQuestion{Repository: repository,
			Revision: revisions[i]}}
		if err := faultrpc.Fault(r.GetFault()); err != nil {
			resolved.Error = &githttp.ResolveError{Kind: fault.KindOf(err).String(), Message: fault.Message(err)}
		} else {
			found := r.GetFound()
			resolved.ID, resolved.Type, resolved.Ref = found.GetOid(), found.GetType(), found.GetRef()
			v := found.GetVersion()
			resolved.Incarnation, resolved.Epoch, resolved.Generation = v.GetIncarnation(), v.GetEpoch(), v.GetGeneration()
		}
		all.Results = append(all.Results, resolved)
	}
	return all, nil
}
