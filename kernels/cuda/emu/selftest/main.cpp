// The emulator against plain formulas, through the driver's interface as a program uses
// it. Each wrong kernel runs in a process of its own, for its error stays.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "selftest.h"

int failures;
std::vector<Case> &cases() {
	static std::vector<Case> c;
	return c;
}
const char *running;
void check(bool ok, const char *what, int line) {
	if (ok) return;
	if (failures++ < 20) fprintf(stderr, "%s, line %d: %s\n", running, line, what);
}
double now() {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
CUfunction_t function(const char *name) {
	static void *module;
	static std::map<std::string, CUfunction_t> known;
	if (!module) MUST(cuModuleLoadData(&module, "any"));
	CUfunction_t &f = known[name];
	if (!f) MUST(cuModuleGetFunction(&f, module, name));
	return f;
}
uint64_t device(size_t n) {
	uint64_t p;
	MUST(cuMemAlloc_v2(&p, n));
	return p;
}

// A child process runs f, with an environment; the answer is its exit status, its messages go to text.
static int apart(const Case &c, std::string *text) {
	int fd[2];
	if (pipe(fd)) abort();
	pid_t pid = fork();
	if (pid == 0) {
		dup2(fd[1], 2);
		close(fd[0]);
		for (const char *e = c.env; e && *e;) { // A=1 B=2
			const char *end = strchr(e, ' ');
			putenv(strndup(e, end ? (size_t)(end - e) : strlen(e)));
			e = end ? end + 1 : nullptr;
		}
		MUST(cuInit(0));
		void *ctx;
		MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
		MUST(cuCtxSetCurrent(ctx));
		running = c.name;
		failures = 0;
		c.run();
		_exit(failures ? 1 : 0);
	}
	close(fd[1]);
	char buf[4096];
	for (ssize_t n; (n = read(fd[0], buf, sizeof buf)) > 0;) text->append(buf, (size_t)n);
	close(fd[0]);
	int status;
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
	int bad = 0, ran = 0;
	for (const Case &c : cases()) {
		if (argc > 1 && !strstr(c.name, argv[1])) continue;
		std::string text;
		int status = apart(c, &text);
		bool said = !c.says || strstr(text.c_str(), c.says);
		ran++;
		if (status == 0 && said && (c.says || text.empty() || c.loud)) {
			if (c.loud) fputs(text.c_str(), stdout);
			continue;
		}
		bad++;
		printf("FAIL %s [%s]: status %d%s\n%s", c.name, c.env ? c.env : "", status, said ? "" : ", without its message", text.c_str());
	}
	printf("%d cases, %d failed\n", ran, bad);
	return bad || !ran;
}
