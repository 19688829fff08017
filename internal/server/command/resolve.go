package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/httpreuse"
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
itself. With --node it asks a storage node, with --url a server by its public address, which may cache revisions.`,
		Example: `  packhorse resolve team/app main --root /srv/git
  packhorse resolve team/app v1.0^{commit} main~3 --json --url https://git.example --token-file token`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("which repository? Name it, as in packhorse resolve team/app main")
			}
			return nil
		},
	}
	var server, tokenFile string
	to := &nodeFinder{target: target{env: env}}
	to.addFlags(cmd.Flags(), true)
	cmd.Flags().StringVar(&server, "url", "", "use the server at `URL`, as in https://git.example")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "`FILE` with the access token for --url")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		revisions := args[1:]
		if len(revisions) == 0 {
			revisions = []string{""}
		}
		var all githttp.ResolveResponse
		var err error
		if server != "" {
			all, err = resolveByURL(cmd.Context(), server, tokenFile, args[0], revisions)
		} else {
			err = to.read(cmd.Context(), func(node *client.Client) error {
				all, err = resolveAt(cmd.Context(), node, args[0], revisions)
				return answerOf(err)
			})
		}
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

const (
	resolveTimeout = time.Minute
	maxResolved    = 16 << 20 // bytes of a response
)

// resolveByURL resolves revisions with the public API of a server.
func resolveByURL(ctx context.Context, server, tokenFile, repository string,
	revisions []string) (all githttp.ResolveResponse, err error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return all, usage(fmt.Errorf("--url %q is not the URL of a server, as in https://git.example", server))
	}
	var asked githttp.ResolveRequest
	for _, revision := range revisions {
		asked.Questions = append(asked.Questions, gateway.RevisionQuestion{Repository: repository, Revision: revision})
	}
	body, err := json.Marshal(asked)
	if err != nil {
		return all, err
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath("/-/api/v1/resolve").String(),
		bytes.NewReader(body))
	if err != nil {
		return all, err
	}
	request.Header.Set("Content-Type", "application/json")
	if tokenFile != "" {
		token, err := credfile.LoadSecret(tokenFile, slog.New(slog.DiscardHandler))
		if err != nil {
			return all, usage(err)
		}
		request.Header.Set("Authorization", "Bearer "+token.Get())
	}
	client := httpreuse.Client(&http.Transport{Proxy: http.ProxyFromEnvironment})
	response, text, err := httpreuse.Do(client, request, maxResolved)
	if err != nil {
		return all, err
	}
	if response.StatusCode != http.StatusOK {
		return all, fmt.Errorf("response of the server: %s: %.500q", response.Status, strings.TrimSpace(string(text)))
	}
	if err := json.Unmarshal(text, &all); err != nil || len(all.Results) != len(revisions) {
		return all, errors.New("invalid response of the server: is it Packhorse?")
	}
	return all, nil
}
