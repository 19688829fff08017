package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/packhorse-git/packhorse/client"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func repoPurge(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "purge PATH OID... | purge --verify RECEIPT", Short: "Remove objects and all copies of them at once",
		Long: `Purge removes objects, such as a file with a password, and everything unreachable that needs them. They go from packs
and the pack cache, in a store also from all nodes and the bucket, with old versions. Objects that a ref reaches are
refused, and the refs named. Rewrite the history first (git filter-repo), push it, and remove tags and other refs with
the old one. Reflog entries that are not part of a ref's history are removed.

An object of Git LFS has "sha256:" in front of its ID, as in its pointer file. To purge a pointer file does not remove
the LFS object.

When purge begins, clients cannot read the objects any more. Fetches and pushes of everything else continue. Afterwards
pushes that bring an object back are refused, until --lift allows that again.

Purge prints a receipt, or writes it to --receipt. With --verify it reads a receipt, inflates every pack of the
repository, in the cache and in the bucket, and reports copies. The exit status is not 0 if anything is left.`,
		Example: `  packhorse repo purge team/app 9daeafb9864cf43055ae93beb0afd6c7d144bfa4 --receipt purge.json --root /srv/git
  packhorse repo purge team/app sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393 --root /srv/git
  packhorse repo purge --verify purge.json --root /srv/git`,
	}
	asJSON := jsonFlag(cmd)
	file := cmd.Flags().String("receipt", "", "write the receipt to `FILE`, which must not exist")
	verify := cmd.Flags().Bool("verify", false, "search for copies of the objects of a receipt; change nothing")
	lift := cmd.Flags().Bool("lift", false, "allow pushes to bring the objects back; change nothing else")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if *verify && len(args) != 1 || !*verify && len(args) < 2 || *verify && (*lift || *file != "") {
			return usage(fmt.Errorf("want PATH and object IDs, or --verify with a receipt"))
		}
		return nil
	}
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		request := &packhorsev1.PurgeRequest{Repository: args[0], ObjectIds: args[1:], Verify: *verify, Lift: *lift}
		if *verify {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var receipt packhorsev1.PurgeResponse
			if err := protojson.Unmarshal(text, &receipt); err != nil {
				return fmt.Errorf("%s is not a receipt: %w", args[0], err)
			}
			request.Repository, request.ObjectIds = receipt.GetRepository(), receipt.GetObjectIds()
		}
		var out *os.File
		if *file != "" { // before anything is removed
			path, err := filepath.Abs(*file)
			if err == nil {
				out, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			}
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("--receipt: %s already exists: name another file, or move it away", path)
			}
			if err != nil {
				return err
			}
			defer out.Close()
		}
		done, err := node.Repositories().Purge(cmd.Context(), connect.NewRequest(request))
		if err != nil {
			if out != nil {
				_ = os.Remove(out.Name()) // it is empty
			}
			return err
		}
		if out != nil {
			text, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Marshal(done.Msg)
			if err == nil {
				_, err = out.Write(append(text, '\n'))
			}
			if err == nil {
				err = out.Sync()
			}
			if err != nil {
				return fmt.Errorf("the objects were purged, but the receipt cannot be written: %w", err)
			}
		}
		err = printResult(cmd, *asJSON, done.Msg, func(w io.Writer) error { return printPurge(w, done.Msg, *verify, *lift) })
		if err != nil {
			return err
		}
		left := append(append(done.Msg.GetCopies(), done.Msg.GetProblems()...), done.Msg.GetOutstanding()...)
		if len(left) > 0 {
			return fmt.Errorf("not everything is gone: %s", strings.Join(left, "; "))
		}
		return nil
	})
}

func printPurge(w io.Writer, m *packhorsev1.PurgeResponse, isVerified, isLifted bool) (err error) {
	switch {
	case isLifted:
		_, err = fmt.Fprintf(w, "%s: pushes may bring the objects back\n", m.GetRepository())
	case isVerified:
		_, err = fmt.Fprintf(w, "%s: %d files searched, %d copies\n", m.GetRepository(), m.GetSearched(), len(m.GetCopies()))
	default:
		_, err = fmt.Fprintf(w, "%s: %d objects purged, %d files and %d cached packs removed; unreadable after %s, gone "+
			"after %s\n", m.GetRepository(), m.GetObjects(), len(m.GetFiles()), m.GetCachedPacks(),
			m.GetHidden().AsTime().Sub(m.GetStarted().AsTime()), m.GetEnded().AsTime().Sub(m.GetStarted().AsTime()))
		for _, note := range m.GetNotes() {
			if err == nil {
				_, err = fmt.Fprintln(w, note)
			}
		}
		if n := m.GetReflogValues(); n > 0 && err == nil {
			_, err = fmt.Fprintf(w, "%d values in reflogs reached them; these entries were removed\n", n)
		}
	}
	return err
}
