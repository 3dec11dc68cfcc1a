/* A tool that takes NVTX, for tests: one JSON line for each event, appended to the file named by NVTX_RECORDER_OUT.

   An NVTX client loads the library named by NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2, which puts our
   functions into its table.  Each line is one write(), so that none is lost however the process ends, and the lines of
   several threads and processes do not mix.  Handles of domains and strings are copies of their names; they live as
   long as the process. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nvtx3/nvToolsExt.h"

static int out = -1;
static atomic_ulong ranges;

static const char *name_of(const nvtxEventAttributes_t *event)
{
    if (!event) return "";
    if (event->messageType == NVTX_MESSAGE_TYPE_ASCII) return event->message.ascii;
    if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED) return (const char *)event->message.registered;
    return "";
}

static void copy_escaped(char *to, size_t size, const char *from)
{
    size_t at = 0;
    for (; *from && at + 2 < size; from++) {
        if (*from == '"' || *from == '\\') to[at++] = '\\';
        to[at++] = *from < ' ' && *from >= 0 ? ' ' : *from;
    }
    to[at] = 0;
}

static void record(const char *kind, const char *domain, const nvtxEventAttributes_t *event, unsigned long range)
{
    char name[256], payload[32] = "null", line[512];
    struct timespec now;
    int length;
    copy_escaped(name, sizeof name, name_of(event));
    if (event && event->payloadType == NVTX_PAYLOAD_TYPE_INT64)
        snprintf(payload, sizeof payload, "%lld", (long long)event->payload.llValue);
    clock_gettime(CLOCK_MONOTONIC, &now);
    length = snprintf(line, sizeof line,
                      "{\"kind\":\"%s\",\"at_ns\":%lld,\"thread\":%ld,\"domain\":\"%s\",\"name\":\"%s\","
                      "\"payload\":%s,\"range\":%lu}\n",
                      kind, now.tv_sec * 1000000000ll + now.tv_nsec, syscall(SYS_gettid), domain ? domain : "", name,
                      payload, range);
    if (write(out, line, (size_t)length) != length) abort();
}

static void NVTX_API on_mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    record("mark", (const char *)domain, event, 0);
}

static int NVTX_API on_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    record("push", (const char *)domain, event, 0);
    return -1; /* as some tools do: nobody may rely on the depth */
}

static int NVTX_API on_pop(nvtxDomainHandle_t domain)
{
    record("pop", (const char *)domain, NULL, 0);
    return -1;
}

static nvtxRangeId_t NVTX_API on_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    unsigned long range = atomic_fetch_add(&ranges, 1) + 1;
    record("start", (const char *)domain, event, range);
    return range;
}

static void NVTX_API on_end(nvtxDomainHandle_t domain, nvtxRangeId_t range)
{
    record("end", (const char *)domain, NULL, (unsigned long)range);
}

static nvtxStringHandle_t NVTX_API on_string(nvtxDomainHandle_t domain, const char *text)
{
    (void)domain;
    return (nvtxStringHandle_t)strdup(text);
}

static nvtxDomainHandle_t NVTX_API on_domain(const char *name) { return (nvtxDomainHandle_t)strdup(name); }

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table)
{
    const char *path = getenv("NVTX_RECORDER_OUT");
    const NvtxExportTableCallbacks *callbacks = get_export_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size = 0;
    if (!path || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out < 0) return 0;
#define TAKE(event, function) \
    if (NVTX_CBID_CORE2_##event < size) *table[NVTX_CBID_CORE2_##event] = (NvtxFunctionPointer)(function)
    TAKE(DomainMarkEx, on_mark);
    TAKE(DomainRangePushEx, on_push);
    TAKE(DomainRangePop, on_pop);
    TAKE(DomainRangeStartEx, on_start);
    TAKE(DomainRangeEnd, on_end);
    TAKE(DomainRegisterStringA, on_string);
    TAKE(DomainCreateA, on_domain);
    return 1;
}
