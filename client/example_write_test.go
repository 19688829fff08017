package client_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/client"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

var ada = &packhorsev1.Author{Name: "Ada", Email: "ada@example.com", Date: "1700007200 +0000"}

func put(path, text string) *packhorsev1.FileChange {
	file := &packhorsev1.PutFile{Path: path, Source: &packhorsev1.PutFile_Text{Text: text}}
	return &packhorsev1.FileChange{Change: &packhorsev1.FileChange_Put{Put: file}}
}

// Commit to a branch, merge it, and see why a later commit fails.
func ExampleClient_CommitService() {
	address, stop := startNode()
	defer stop()
	ctx := context.Background()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	commit := &packhorsev1.CommitServiceCreateRequest{Repository: "demo", Branch: "topic", Create: true, Start: "main",
		Author: ada, Message: "topic", Changes: []*packhorsev1.FileChange{put("topic.txt", "1\n")}}
	made, err := node.CommitService().Create(ctx, connect.NewRequest(commit))
	if err != nil {
		log.Fatal(err)
	}
	pairs := []*packhorsev1.MergePair{{Id: "topic", Target: "main", Source: "topic"}}
	for result, err := range node.CheckMerges(ctx, "demo", pairs) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.GetId(), "has", len(result.GetConflicts()), "conflicts")
	}
	merged, err := node.Merges().Merge(ctx, connect.NewRequest(&packhorsev1.MergeRequest{Repository: "demo",
		Target: "main", Source: "topic"}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("main is at the commit:", merged.Msg.GetCommit() == made.Msg.GetCommit())

	_, err = node.CommitService().Create(ctx, connect.NewRequest(&packhorsev1.CommitServiceCreateRequest{
		Repository: "demo", Branch: "main", ExpectedHead: strings.Repeat("1", 40), Message: "late",
		Changes: []*packhorsev1.FileChange{put("late.txt", "2\n")}}))
	fmt.Println(client.KindOf(err))
	for _, mismatch := range client.FaultOf(err).GetMismatches() {
		fmt.Println(mismatch.GetName(), "has moved:", mismatch.GetActual() == made.Msg.GetCommit())
	}
	// Output:
	// topic has 0 conflicts
	// main is at the commit: true
	// FAULT_KIND_ABORTED
	// refs/heads/main has moved: true
}

// Commit a file that does not fit in memory.
func ExampleClient_OpenCommit() {
	address, stop := startNode()
	defer stop()
	ctx := context.Background()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	w, err := node.OpenCommit(ctx, &packhorsev1.CommitServiceCreateRequest{Repository: "demo", Branch: "main",
		Author: ada, Message: "A large file"})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	content := strings.NewReader(strings.Repeat("0123456789abcdef", 1<<16))
	if err := w.AddFile(&packhorsev1.PutFile{Path: "large.bin"}, content); err != nil {
		log.Fatal(err)
	}
	made, err := w.Commit()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(made.GetTree())

	commits := make(map[string]*packhorsev1.Commit) // each is in the first message that names it
	request := &packhorsev1.LastCommitsRequest{Repository: "demo"}
	for part, err := range client.Messages(ctx, request, node.History().LastCommits) {
		if err != nil {
			log.Fatal(err)
		}
		for _, commit := range part.GetCommits() {
			commits[commit.GetOid()] = commit
		}
		for _, entry := range part.GetEntries() {
			fmt.Printf("%s: %s", entry.GetName(), commits[entry.GetCommit()].GetMessage())
		}
	}
	// Output:
	// fe3962bfc030b38fe8a4520a819db5f771e83ecf
	// README: begin
	// large.bin: A large file
	// run: go on
}

func ExampleMessages() {
	address, stop := startNode()
	defer stop()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	request := &packhorsev1.PatchRequest{Repository: "demo", To: "main"}
	for part, err := range client.Messages(context.Background(), request, node.Diffs().Patch) {
		if err != nil {
			log.Fatal(err)
		}
		os.Stdout.Write(part.GetFile().GetPatch())
		os.Stdout.Write(part.GetPatch()) // more of the same file
		if summary := part.GetSummary(); summary != nil {
			fmt.Println(summary.GetFiles(), "file,", summary.GetAdditions(), "line")
		}
	}
	// Output:
	// diff --git a/run b/run
	// new file mode 100755
	// index 0000000000000000000000000000000000000000..27ba77ddaf61532f217964734769a42cdabc17dc
	// --- /dev/null
	// +++ b/run
	// @@ -0,0 +1 @@
	// +true
	// 1 file, 1 line
}

func ExampleClient_OpenArchive() {
	address, stop := startNode()
	defer stop()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	archive, err := node.OpenArchive(context.Background(), &packhorsev1.ArchiveRequest{Repository: "demo", Revision: "v1"})
	if err != nil {
		log.Fatal(err)
	}
	defer archive.Close()
	for files := tar.NewReader(archive); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(file.Name, file.Size)
	}
	if _, err := io.Copy(io.Discard, archive); err != nil { // the last read checks the hash
		log.Fatal(err)
	}
	// Output:
	// pax_global_header 0
	// README 14
}
